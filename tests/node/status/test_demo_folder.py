"""All commands agree on the layout of a demo's folder."""

from starling.node.status import demo_folder


def test_nodes_of_a_demo_are_listed_in_numerical_order(tmp_path):
    """node-10 comes after node-9; files, the lone node and other folders are not nodes of the demo."""
    for number in (10, 9, 0):
        demo_folder.place(tmp_path, number).mkdir()
    for name in (demo_folder.ALONE, "node-x", "node-"):
        (tmp_path / name).mkdir()
    demo_folder.place(tmp_path, 3).touch()
    assert list(demo_folder.nodes(tmp_path).items()) == [(n, tmp_path / f"node-{n}") for n in (0, 9, 10)]


def test_a_path_that_is_no_folder_has_no_nodes(tmp_path):
    assert demo_folder.nodes(tmp_path / "none") == {}
