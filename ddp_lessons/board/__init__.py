"""
The class board: a page on which a teacher sees how far the room is, and where it is stuck.

    columns        what can be seen of the course: a column a section and a task
    people         who is on the board, each with a row that only they can write; kept on the disk
    names          the names that they choose
    codes          wrong class codes, counted by address
    removed        rows that the teacher has removed
    files          rows from a folder of state files
    view           what the page shows: cells, who is stuck, what goes wrong most, predictions
    table          the same for a spreadsheet
    board          columns, rows and who wants to be told of changes
    app            the web application: the page, its events, and what learners send
    hub            who may see and write what, where a JupyterHub says so
    serving        listen, until it is ended

Nothing here knows torch, notebooks or ranks: it is told the columns, and works on plain data.
"""
