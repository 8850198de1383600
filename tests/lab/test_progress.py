"""The progress that a benchmark shows, on a terminal and off it."""



from edgekv.cli.common.progress import Lines


def test_progress_off_a_terminal():
    """A line when a part is finished, one every half minute within it, and nothing of runs that are over at once."""
    said, now = [], [0.0]
    lines = Lines(lambda: now[0], said.append)
    for now[0], what, done, left in ((1, "prose: read", 0, None), (29, "prose: off", 100, None), (40, "prose: exact", 200, 90.0),
                                     (69, "prose: sparse", 300, 80.0), (71, "prose: ema", 400, 75.0), (73.5, "code: read", 500, 70.0),
                                     (74, "passkey: read", 501, 70.0), (104, "passkey: off", 600, None)):
        lines(what, done, 1000, left)
    now[0] = 200
    lines.close()
    assert said == ["prose: exact, 20 % done, about 90 s left".replace("90 s", "2 min"), "prose: ema, 40 % done, about 75 s left",
                    "prose finished; code: read, 50 % done, about 70 s left", "passkey: off, 60 % done, about 69 s left",
                    "passkey finished, after 3 min in all"]
    short, silent = Lines(lambda: now[0], said.append), len(said)
    for what in ("a", "b: c", "d"):
        short(what, 1, 2)
    short.close()
    assert len(said) == silent


def test_time_left_where_the_caller_does_not_know():
    """By a rule of three, from where a count begins."""
    said, now = [], [0.0]
    lines = Lines(lambda: now[0], said.append)
    for now[0], done, total in ((0, 0, 50), (10, 50, 50), (20, 0, 1000), (60, 200, 1000)):
        lines("decode", done, total)
    assert said == ["decode, 20 % done, about 3 min left"]
