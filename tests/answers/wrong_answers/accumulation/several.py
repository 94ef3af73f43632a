"""
Answers that are wrong in the same way in several tasks.
"""

from wrong_answers.accumulation.sources import (
    BY_FOUR,
    BY_HAND,
    FIRST,
    HALVES,
    TRAINED,
    ZEROS,
    altered,
    at_end,
    at_first,
)

ANSWERS = [
    # These answers leave something changed.
    *(
        at_first(number, "leaves the model in eval mode", "mode", "    model.eval()\n")
        for number in BY_HAND
    ),
    *(
        at_first(number, "thaws what is frozen", "thawed", "    model.requires_grad_(True)\n")
        for number in BY_HAND
    ),
    *(
        at_end(number, "gives the frozen parameter zeros", "frozen-gradient", ZEROS)
        for number in BY_HAND
    ),
    *(
        altered(
            number,
            "keeps each graph",
            "graph-kept",
            ("loss.backward()", "loss.backward(retain_graph=True)"),
        )
        for number in BY_HAND
    ),
    *(
        altered(
            number,
            "loses a dimension",
            "shapes",
            ("mse_loss(model(x), y)", "mse_loss(model(x)[:, 0], y)"),
        )
        for number in BY_HAND
    ),
    *(
        at_end(
            number,
            "tells the others its loss",
            mistake,
            "    one = loss.detach().clone()\n    dist.all_reduce(one)\n",
        )
        for number, mistake in (
            ("07.2", "own-message"),
            ("07.3", "length-message"),
        )
    ),
    altered(
        "07.3",
        "divides in hooks that stay",
        "hooks",
        (FIRST["07.3"], FIRST["07.3"] + TRAINED + "        p.register_hook(lambda g: g / k)\n"),
        (" / k\n", "\n"),
    ),
    *(
        at_end(number, "knows of 4 ranks", "fixed-size", BY_FOUR, ("sync = number", "sync = 0"))
        for number in BY_HAND
    ),
    at_end("07.3", "rounds to bfloat16", "digits", TRAINED + HALVES),
]
