(() => {
  "use strict"
  const NAME = "ddp-lessons-lab"

  // A lesson and its exercise have one file name, which is all that JupyterLab's tabs show. So the tab of
  // an exercise says what it is. JupyterLab takes the label itself for the file's name, and would
  // rename the file: that is why the word is put before it by a style.
  const STYLE = `
    .lm-DockPanel-tabBar .lm-TabBar-tab[title*="exercises/"] .lm-TabBar-tabLabel::before {
      content: "exercise \\00B7  ";
      color: var(--jp-ui-font-color2);
    }
    /* JupyterLab shows the first line of a folded cell, which is often the answer. Leave the dots. */
    .jp-Notebook .jp-InputPlaceholder .jp-PlaceholderText { display: none; }`
  const styles = {
    id: `${NAME}:styles`,
    autoStart: true,
    activate: () => {
      const style = document.createElement("style")
      style.textContent = STYLE
      document.head.append(style)
    },
  }

  // A lesson comes with the answers to its predictions folded. When a code cell has run, the cells
  // below it unfold, up to and with the next code cell. A cell that fails unfolds nothing, unless it
  // is meant to fail; a cell that was not run because one above it failed has no error of its own.
  let modules
  const answers = {
    id: `${NAME}:answers`,
    autoStart: true,
    activate: async () => {
      const [version] = Object.values(modules["@jupyterlab/notebook"])
      const { NotebookActions } = (await version.get())()
      NotebookActions.executed.connect((_, { notebook, cell, success, error }) => {
        const isMeantToFail = cell.model.getMetadata("tags")?.includes("raises-exception")
        if (cell.model.type !== "code" || !(success || (isMeantToFail && error?.errorName))) return
        const cells = notebook.widgets
        for (const next of cells.slice(cells.indexOf(cell) + 1)) {
          next.inputHidden = false
          if (next.model.type === "code") return
        }
      })
    },
  }

  // What a bundler would write around it: the three things that JupyterLab asks of an extension.
  window._JUPYTERLAB ??= {}
  window._JUPYTERLAB[NAME] = {
    init: (shared) => {
      modules = shared
    },
    get: () => Promise.resolve(() => ({ __esModule: true, default: [styles, answers] })),
  }
})()
