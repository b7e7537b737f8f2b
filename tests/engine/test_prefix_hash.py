from engine.prefix_hash import NAME_BYTES, chain, hint, names_after, root, salt_of


def test_only_full_blocks_have_a_name() -> None:
    """Fault: a name for a block that is still growing."""
    assert [len(chain(range(count), 4)) for count in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_longer_prompt_begins_with_the_names_of_a_shorter_one() -> None:
    """Fault: what follows a block is part of its name."""
    assert chain(range(50), 4)[:5] == chain(range(22), 4)


def test_the_same_tokens_after_others_have_another_name() -> None:
    """Fault: the parent is forgotten, and a block is found behind the wrong beginning."""
    same = [9, 9, 9, 9]
    assert chain([1, 2, 3, 4, *same], 4)[1] != chain([1, 2, 3, 5, *same], 4)[1]
    assert len(set(chain([9] * 16, 4))) == 4


def test_the_salt_is_part_of_every_name() -> None:
    """Fault: one tenant finds another one's blocks."""
    plain, salted = chain(range(16), 4), chain(range(16), 4, b"a")
    assert not set(plain) & set(salted)
    assert salted == chain(range(16), 4, b"a") != chain(range(16), 4, b"b")


def test_a_name_can_be_worked_out_from_the_one_before() -> None:
    """Fault: names of an answer do not go on from those of its prompt."""
    names = names_after(root(b"salt"), range(12), 4)
    assert [len(name) for name in names] == [NAME_BYTES] * 3
    assert names_after(names[0], range(4, 12), 4) == names[1:]
    assert chain(range(12), 4, b"salt") == [hint(name) for name in names]


def test_the_names_are_the_same_in_every_process_and_release() -> None:
    """Fault: gateway and replica disagree, so that no hint ever matches."""
    assert chain([1, 2, 3, 4], 4) == [6778937748864227507]


def test_token_ids_do_not_run_into_each_other() -> None:
    """Fault: ids written without a fixed width, so that 1, 23 reads as 12, 3."""
    assert chain([1, 256], 2) != chain([257, 0], 2)
    assert chain([1, 23], 2) != chain([12, 3], 2)


def test_parts_of_a_salt_do_not_run_into_each_other() -> None:
    """Fault: a tenant chooses a salt with which it finds the blocks of another."""
    salts = [salt_of(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"))]
    assert len(set(salts)) == 4
    assert b"" not in salts
    assert salt_of("", "") == b""
    assert salt_of("", "\ud800") != salt_of("", "\ud801")
