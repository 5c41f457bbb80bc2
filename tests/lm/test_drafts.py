"""Drafts are what followed before, and stop where they lose."""

import random

from rebracket.lm.drafts import BACK, MOST_TEXTS, ROW, TRIAL, Drafter


def longest_match(tokens: list[int], most: int) -> list[int]:
    """In the last 2,000 tokens, from the newest place back: where the last four stood, else three, else two."""
    tokens = tokens[-BACK:]
    for count in (4, 3, 2):
        ending = tokens[-count:]
        for end in range(len(tokens) - 1, count - 1, -1):
            if len(tokens) > count and tokens[end - count : end] == ending:
                return tokens[end : end + most]
    return []


def test_drafts_follow_the_longest_and_latest_match():
    draw, drafter, tokens = random.Random(0), Drafter(3), []
    for _ in range(9000):
        tokens.append(draw.choice([0, 0, 1, 2, draw.randrange(40)]))
        drafter.read(tokens[-1:])
        if draw.random() < 0.02 or len(tokens) < 8:
            assert drafter.guess(1) == longest_match(tokens, 3)
    assert len(drafter._tokens) <= 2 * BACK


def test_what_is_far_back_is_forgotten():
    for between, wanted in ((BACK - 7, [7, 8]), (BACK - 5, [])):
        drafter = Drafter(2)
        drafter.read([5, 6, 7, 8])
        drafter.read([100 + n for n in range(between)])
        drafter.read([5, 6])
        assert drafter.guess(1) == wanted


def test_bytes_of_two_tokens_are_not_one():
    drafter = Drafter(2)
    drafter.read([1 << 8, 2 << 8, 3 << 8, 9, 1, 2])
    assert drafter.guess(1) == []


def test_none_are_made_without_leave_or_for_many_texts():
    quiet, drafter = Drafter(0), Drafter(2)
    for each in (quiet, drafter):
        each.read([1, 2, 3, 1, 2])
    assert quiet.guess(1) == drafter.guess(MOST_TEXTS + 1) == []
    assert drafter.guess(MOST_TEXTS) == [3, 1]


def rested(drafter: Drafter) -> int:
    """Tokens until it drafts again."""
    count = 0
    while not drafter.guess(1):
        drafter.read([1])
        count += 1
    return count


def test_a_text_whose_drafts_lose_rests_ever_longer_and_one_whose_drafts_gain_never():
    drafter = Drafter(4)
    drafter.read([1] * 9)
    gain = int(ROW * TRIAL) + 1
    for _ in range(5):
        drafter.learn(TRIAL, gain, texts=1)
    assert rested(drafter) == 0
    rests = []
    for _ in range(7):
        drafter.learn(9 * TRIAL, 0, texts=1)
        rests.append(rested(drafter))
    assert rests == [64, 128, 256, 512, 1024, 1024, 1024]
    drafter.learn(TRIAL, TRIAL, texts=1)
    drafter.learn(9 * TRIAL, 0, texts=1)
    assert rested(drafter) == 64


def test_among_many_texts_a_draft_must_be_right_more_often():
    for texts, share in ((1, 0.25), (4, 0.57), (8, 0.73)):
        for right, rests in ((share + 0.03, False), (share - 0.03, True)):
            drafter = Drafter(4)
            drafter.read([1] * 9)
            drafter.learn(100, round(100 * right), texts)
            assert (drafter.guess(1) == []) == rests
