"""Episodes: prompt and response are views of the conversation's turns."""

from hookline_hookspecs import Episode, Turn


def test_one_prompt_and_one_response_are_the_two_turns_of_the_plain_case() -> None:
    episode = Episode(turns=[Turn("user", "2+3=", 0, 4), Turn("assistant", "5", 4, 6)])
    assert (episode.prompt, episode.response) == ("2+3=", "5")


def test_of_several_turns_the_prompt_comes_first_and_the_response_is_the_last_of_the_policy() -> None:
    turns = [
        Turn("system", "Be brief. "), Turn("user", "2+3?"), Turn("assistant", "add(2, 3)"),
        Turn("tool", "5"), Turn("assistant", "It is 5."),
    ]  # fmt: skip
    episode = Episode(turns=turns)
    assert (episode.prompt, episode.response) == ("Be brief. 2+3?", "It is 5.")
    assert Episode(turns=[*turns, Turn("user", "Thanks.")]).response == "It is 5."


def test_a_conversation_without_a_response_is_all_prompt() -> None:
    episode = Episode(turns=[Turn("user", "2+3="), Turn("user", "?")])
    assert (episode.prompt, episode.response) == ("2+3=?", "")


def test_an_episode_of_texts_alone_has_no_turns() -> None:
    episode = Episode("2+3=", "5")
    assert (episode.prompt, episode.response, episode.turns) == ("2+3=", "5", ())
