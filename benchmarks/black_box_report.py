"""Tables and the figure of black_box.py, from its rows."""


def show(rows):
    return []


def show_ratios(rows):
    return []


def draw(rows, path):
    pass
