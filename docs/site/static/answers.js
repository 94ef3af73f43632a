// A button that opens all answers of a page, or closes them. Without scripts each still opens alone.
document.addEventListener("DOMContentLoaded", () => {
  const answers = [...document.querySelectorAll("details.answer")];
  const title = document.querySelector("article h1");
  if (!answers.length || !title) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "all-answers";
  const areOpen = () => answers.every((answer) => answer.open);
  const name = () => { button.textContent = areOpen() ? "Close all answers" : "Open all answers"; };
  button.addEventListener("click", () => {
    const open = !areOpen();
    answers.forEach((answer) => { answer.open = open; });
  });
  answers.forEach((answer) => answer.addEventListener("toggle", name));
  addEventListener("beforeprint", () => answers.forEach((answer) => { answer.open = true; }));
  name();
  (title.parentElement.querySelector(".beside") ?? title).after(button);
});
