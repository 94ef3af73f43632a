// How Sphinx's search ranks what it has found: its own numbers, but lessons come before all else.
var Scorer = {
  score: ([page, , , , score]) => score + (page.startsWith("lessons/") ? 100 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
