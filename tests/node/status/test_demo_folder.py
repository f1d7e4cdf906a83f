"""Where a demo keeps its nodes is one thing for who makes, shows, completes and refuses such a folder."""

from starling.node.status import demo_folder


def test_nodes_are_found_by_number_in_its_order_and_nothing_else_is(tmp_path):
    """node-10 comes after node-9; files, the one that is alone, and what people put beside are no nodes."""
    for number in (10, 9, 0):
        demo_folder.place(tmp_path, number).mkdir()
    for name in (demo_folder.ALONE, "node-x", "node-"):
        (tmp_path / name).mkdir()
    demo_folder.place(tmp_path, 3).touch()
    assert list(demo_folder.nodes(tmp_path).items()) == [(n, tmp_path / f"node-{n}") for n in (0, 9, 10)]


def test_a_path_that_is_no_folder_has_no_nodes(tmp_path):
    assert demo_folder.nodes(tmp_path / "none") == {}
