// Draw what the board tells. Names and answers are put in as text, so none of them is ever markup.
"use strict"

const at = (id) => document.getElementById(id)
let shown = null
let isPressed = false
let removing = null
const chosen = { lessons: "", questions: "" }

function make(tag, text, kind) {
  const node = document.createElement(tag)
  if (text !== undefined) node.textContent = text
  if (kind) node.className = kind
  return node
}

// A chosen name may look like somebody else's; the login beside it is the hub's.
const loginOf = (row) => row.login ? ` (login ${row.login})` : ""

// A choice of the teacher's stays; without one, the page follows the room.
function choose(id, options, now) {
  const select = at(id)
  const room = options.find(([value]) => value === now)
  const lines = [["", "where the room is" + (room ? `: ${room[1]}` : "")], ...options]
  const names = lines.map(([value]) => value)
  if (lines.flat().join("\n") !== select.dataset.lines) {
    select.dataset.lines = lines.flat().join("\n")
    select.replaceChildren(...lines.map(([value, label]) => {
      const option = make("option", label)
      option.value = value
      return option
    }))
  }
  if (!names.includes(chosen[id])) chosen[id] = ""
  select.value = chosen[id]
  return chosen[id] || now || (options.length ? options[0][0] : "")
}

function drawQuestion() {
  const options = shown.questions.map((one) => [one.key, `${one.label} ${one.title}`])
  const key = choose("questions", options, shown.now.question)
  const asked = shown.questions.find((one) => one.key === key)
  at("title").textContent = asked ? `${asked.label} ${asked.title}` : ""
  at("text").textContent = asked ? asked.text : "Nobody is here yet."
  const most = Math.max(1, ...(asked ? asked.spread.map(([, count]) => count) : []))
  at("spread").replaceChildren(...(asked ? asked.spread : []).map(([number, count]) => {
    const line = make("li")
    const bar = make("span", undefined, "bar")
    bar.style.width = `${100 * count / most}%`
    line.append(make("b", number), bar, make("span", count, "count"))
    return line
  }))
  at("silent").textContent = asked ? `Without an answer: ${asked.num_open}` : ""
  at("was").textContent = asked && asked.was !== null ? asked.was : "Nobody has run it yet."
}

function drawMistakes() {
  at("mistakes").replaceChildren(...shown.mistakes.map((one) => {
    const line = make("li")
    line.append(make("b", `${one.task} ${one.name}: ${one.mistake}`))
    line.append(make("div", `made by ${one.num_learners}, still open for ${one.num_open}`, "why"))
    if (one.hint) line.append(make("p", one.hint, "hint"))
    return line
  }))
  if (!shown.mistakes.length) at("mistakes").append(make("li", "Nothing yet.", "why"))
}

function drawStuck() {
  const stuck = shown.rows.filter((row) => row.stuck)
  at("stuck-list").replaceChildren(...stuck.map((row) => {
    const line = make("li")
    const where = `${row.stuck.task} ${row.stuck.name}`
    const mistake = row.stuck.mistake ? `: ${row.stuck.mistake}` : ""
    line.append(make("b", row.name), make("span", loginOf(row), "login"), ` at ${where}`)
    line.append(make("div", `${row.stuck.why}${mistake}`, "why"))
    return line
  }))
  if (!stuck.length) at("stuck-list").append(make("li", "Nobody.", "why"))
}

function words(cell) {
  const hints = cell.hints ? ` h${cell.hints}` : ""
  if (cell.is === "solved" || cell.is === "held") return "✓" + hints
  if (cell.is === "said") return "?"
  if (cell.is === "tried") return `${cell.checks} ${cell.mistake || ""}`.trim() + hints
  return hints.trim() || "·"
}

function ago(minutes) {
  if (minutes === null) return ""
  if (minutes < 1) return "now"
  return minutes < 120 ? `${minutes} min ago` : `${Math.floor(minutes / 60)} h ago`
}

function drawTable() {
  const options = shown.lessons.map((one) => [one.stem, one.stem])
  const stem = choose("lessons", options, shown.now.lesson)
  const lesson = shown.lessons.find((one) => one.stem === stem)
  const columns = lesson ? lesson.columns : []
  const head = make("tr")
  head.append(make("th", "name"), ...columns.map((one) => {
    const cell = make("th", one.label)
    cell.scope = "col"
    cell.title = one.title
    return cell
  }), make("th", "solved"), make("th", "last seen"), make("th"))
  const lines = shown.rows.map((row) => {
    const line = make("tr", undefined, row.stuck ? "stuck" : "")
    const name = make("th", row.name)
    name.scope = "row"
    name.append(make("span", loginOf(row), "login"))
    line.append(name, ...columns.map((one) => {
      const told = row.cells[one.key] || { is: "open" }
      const cell = make("td", words(told), told.is)
      cell.title = `${one.label} ${one.title}: ${told.is}`
      return cell
    }))
    line.append(make("td", row.num_solved), make("td", ago(row.ago_min)), removal(row))
    return line
  })
  const top = make("thead"), rest = make("tbody")
  top.append(head)
  rest.append(...lines)
  const focused = document.activeElement.dataset.row
  at("table").replaceChildren(top, rest)
  if (focused) document.querySelector(`button[data-row="${focused}"]`)?.focus()
}

// Rows from a folder have no key: they are not the board's to remove.
function removal(row) {
  const cell = make("td")
  if (!row.key) return cell
  const button = make("button", "✕")
  button.type = "button"
  button.dataset.row = row.key
  button.title = `Remove ${row.name}${loginOf(row)}`
  button.setAttribute("aria-label", button.title)
  button.addEventListener("click", () => ask(row))
  cell.append(button)
  return cell
}

function ask(row) {
  removing = row.key
  at("whom").textContent = `Remove ${row.name}${loginOf(row)}?`
  at("failed").textContent = ""
  at("removing").showModal()
}

async function remove() {
  // Under a hub, the cookie's word tells it that this page asks, and none of elsewhere.
  const word = document.cookie.match(/(?:^|; )_xsrf=([^;]+)/)
  const headers = word ? { "X-XSRFToken": word[1] } : {}
  try {
    const answer = await fetch(`rows/${removing}`, { method: "DELETE", headers })
    if (!answer.ok) throw new Error(`the board answers ${answer.status}`)
    at("removing").close()
  } catch (error) {
    at("failed").textContent = `It is still there: ${error.message}.`
  }
}

at("keep").addEventListener("click", () => at("removing").close())
at("remove").addEventListener("click", remove)

function draw() {
  if (!shown) return
  at("join").hidden = !shown.join
  if (shown.join) {
    const { address, code } = shown.join
    at("line").textContent = "from ddp_lessons import join_board; "
      + `join_board("${address}", code="${code}", name="...")`
  }
  drawQuestion()
  drawMistakes()
  drawStuck()
  drawTable()
}

for (const id of ["questions", "lessons"]) {
  at(id).addEventListener("change", () => {
    chosen[id] = at(id).value
    draw()
  })
}

at("projector").addEventListener("click", () => {
  const is_on = document.body.classList.toggle("projector")
  at("projector").setAttribute("aria-pressed", String(is_on))
})

function say(text, is_lost) {
  at("state").textContent = text
  at("state").classList.toggle("lost", is_lost)
}

// A button that is drawn anew while it is pressed is never clicked.
function pressed(is_on) {
  isPressed = is_on
  if (!is_on) setTimeout(draw)
}

addEventListener("pointerdown", () => pressed(true))
for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => pressed(false))

function listen() {
  const events = new EventSource("events")
  events.onmessage = (event) => {
    shown = JSON.parse(event.data)
    say(`${shown.rows.length} on the board`, false)
    if (!isPressed) draw()
  }
  events.onerror = () => {
    say("the board does not answer; trying again", true)
    // A browser gives up when a proxy answers 503 in the place of a board that is away.
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 3000)
  }
}

listen()
