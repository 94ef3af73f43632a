"""
The class board: a page on which a teacher sees how far learners are, and where they are stuck.

    columns        a column for each section of a lesson and each task of an exercise
    roster         the learners, each with a row on the disk that only this learner can write
    names          the names that learners choose
    rate_limit     wrong class codes, counted by address
    removed_rows   rows that the teacher has removed
    state_files    rows from a folder of state files
    view           the page's contents: cells, stuck learners, common mistakes, predictions
    csv_table      the same for a spreadsheet
    board          columns, rows, and the open pages that are notified of changes
    app            the web application: the page, its events, and the learners' requests
    hub_service    which users of a JupyterHub may see and write what
    serving        the server, which listens until it is ended

The package knows no torch, notebooks or ranks: it gets the columns, and works on plain data.
"""
