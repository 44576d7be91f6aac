"""What the checks share: a table, and how they end."""

import pytest

from captioners.evaluation import no_input
from captioners.evaluation.check_command import exit_code, markdown_table
from captioners.types import CaptionLabError


def test_a_table_is_markdown():
    assert markdown_table(["a", "b"], [[1, "x"]]) == "| a | b |\n| --- | --- |\n| 1 | x |"


@pytest.mark.parametrize("error", [CaptionLabError("give another folder"), OSError("no room")])
def test_bad_input_is_one_line_and_two(error, capsys):
    def fail() -> None:
        raise error

    assert exit_code(fail) == 2
    assert capsys.readouterr().err == f"{error}\n"


def test_a_mistake_in_the_code_is_not_swallowed():
    with pytest.raises(ZeroDivisionError):
        exit_code(lambda: print(1 / 0))


def test_a_folder_that_is_not_there_is_told(tmp_path, capsys):
    assert no_input.main([str(tmp_path / "nowhere")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
