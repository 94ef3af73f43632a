// A lesson and its exercise have one file name, which is all that JupyterLab's tabs show. So the tab of
// an exercise says what it is. JupyterLab takes the label itself for the file's name, and would
// rename the file: that is why the word is put before it by a style.
(() => {
  "use strict"
  const NAME = "ddp-lessons-tabs"
  const STYLE = `
    .lm-DockPanel-tabBar .lm-TabBar-tab[title*="exercises/"] .lm-TabBar-tabLabel::before {
      content: "exercise \\00B7  ";
      color: var(--jp-ui-font-color2);
    }`
  const extension = {
    id: `${NAME}:plugin`,
    autoStart: true,
    activate: () => {
      const style = document.createElement("style")
      style.textContent = STYLE
      document.head.append(style)
    },
  }
  // What a bundler would write around it: the three things that JupyterLab asks of an extension.
  window._JUPYTERLAB ??= {}
  window._JUPYTERLAB[NAME] = {
    init: () => {},
    get: () => Promise.resolve(() => ({ __esModule: true, default: extension })),
  }
})()
