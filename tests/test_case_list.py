"""Which test holds which public fault of other servers, by their numbers in facts/clients.md, section 3.

The numbers have gaps. 37 (a draft model beside a hybrid) cannot occur: no draft model can be given.
"""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# Tests of `test_api_cases` begin with their number; these hold the case as well, or alone.
ELSEWHERE = {
    2: ("test_text.py::test_joined_pieces_equal_the_decoded_tokens_for_any_tokens",),
    8: ("test_parsing.py::test_case_8_thoughts_that_a_natural_end_leaves_open_are_the_content_too",),
    10: ("test_grammar.py::test_after_its_thoughts_comes_the_json",),
    11: ("test_history.py::test_case_11_string_arguments_of_a_replayed_call_render_as_an_object",),
    12: ("test_history.py::test_case_12_a_template_that_wants_strings_gets_strings",),
    14: ("test_parsing.py::test_case_14_two_functions_in_one_block_have_two_indices_and_each_valid_json",),
    15: ("test_parsing.py::test_case_15_arguments_concatenate_to_the_same_json_for_a_cut_at_every_boundary",),
    17: ("test_parsing.py::test_case_17_a_string_loses_one_newline_per_side_and_nothing_else",),
    19: ("test_history.py::test_case_19_malformed_replayed_arguments_are_a_clear_400",),
    21: ("test_history.py::test_case_21_null_content_beside_calls_is_empty_text",),
    22: ("test_history.py::test_case_22_all_text_parts_are_joined",),
    23: (
        "test_api_live.py::test_sixteen_clients_at_once_each_get_their_own_answer",
        "test_client_load.py::test_eight_clients_get_their_own_answers_and_leave_nothing_behind",
        "clients/test_locust.py::test_sixteen_users_for_a_minute_get_their_own_answers_and_nothing_grows",
    ),
    25: (
        "test_api_restart.py::test_case_25_the_running_request_fails_what_waits_goes_on_and_health_is_good_again",
    ),
    # Requests run in turn; nothing is batched.
    26: ("test_end_to_end.py::test_eight_clients_at_once_get_what_each_gets_alone",),
    27: ("test_end_to_end.py::test_leaving_in_mid_prefill_frees_the_engine",),
    31: (
        "test_sessions.py::test_a_turn_that_keeps_the_answer_goes_on_behind_the_prompt",
        "test_end_to_end.py::test_a_second_turn_says_what_was_cached_and_is_the_same_text",
    ),
    32: ("test_sessions.py::test_an_edit_in_the_middle_goes_back_before_it",),
    34: ("test_sessions.py::test_two_conversations_in_turns_do_not_mix",),
    35: ("test_sequence.py::test_going_back_to_any_position_gives_the_bits_of_a_fresh_read",),
    36: ("test_history.py::test_case_36_whatever_was_thought_and_said_the_prompt_is_a_prefix",),
}
# Exact cases that need no model, and the others, less those of later numbers.
CASES = (
    *(2, 4, 5, 6, 8, 10, 11, 12, 14, 15, 17, 19, 21, 22, 23, 24, 25, 26, 27, 29, 30),
    *(31, 32, 34, 35, 36, 39, 41, 42, 43, 44, 45),
)


def names_in(file: str) -> set[str]:
    tree = ast.parse((HERE / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_a_test(case: int) -> None:
    named = [name for name in names_in("test_api_cases.py") if name.startswith(f"test_{case:02}_")]
    elsewhere = [place.split("::") for place in ELSEWHERE.get(case, ())]
    assert named or elsewhere
    for file, name in elsewhere:
        assert name in names_in(file), f"{file} has no {name}"
