"""engine.llm: offline generation on the demo model."""

import random
from pathlib import Path

import pytest

from engine.llm import LLM, Completion, GenerationFailed
from engine.request import FinishReason, InvalidParam, NeverFits, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(demo_model_dir: Path) -> LLM:
    return LLM(str(demo_model_dir), num_blocks=128, threads=1)


def france(llm: LLM) -> str:
    message = {"role": "user", "content": "What is the capital of France?"}
    text = llm.tokenizer.apply_chat_template([message], add_generation_prompt=True, tokenize=False)
    assert isinstance(text, str)
    return text


def test_it_answers_paris_alone_and_among_others(llm: LLM) -> None:
    alone = llm.generate(france(llm), GREEDY, progress=False)
    others: list[str | list[int]] = [[17 + i, 400, 500 + i] for i in range(9)]
    among = llm.generate([*others, france(llm)], GREEDY, progress=False)
    assert alone[0].text == "The capital of France is Paris."
    assert alone[0].finish_reason is FinishReason.STOP
    assert among[-1] == alone[0]


def test_text_and_its_token_ids_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.tokenizer("The tide gate")["input_ids"]
    by_text, by_ids = llm.generate(["The tide gate", ids], GREEDY, progress=False)
    assert by_text == by_ids
    assert by_text.prompt_token_ids == ids
    assert llm.generate(ids, GREEDY, progress=False) == [by_ids]


def test_a_seed_repeats_its_answer_and_another_seed_does_not(llm: LLM) -> None:
    def answer(seed: int) -> list[int]:
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=12)
        return llm.generate("Once upon a time", params, progress=False)[0].token_ids

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (1, 5)]
    short, long = llm.generate(["The sea", "The sea"], params, priority=[0, 3], progress=False)
    assert (len(short.token_ids), len(long.token_ids)) == (1, 5)
    assert long.token_ids[:1] == short.token_ids


def test_a_tight_pool_preempts_and_answers_the_same(llm: LLM, demo_model_dir: Path) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(17, 40_000) for _ in range(20)] for _ in range(5)]
    params = [
        SamplingParams(temperature=float(i % 2), seed=i, max_tokens=20, ignore_eos=True)
        for i in range(5)
    ]
    roomy = llm.generate(prompts, params, progress=False)
    tight = LLM(str(demo_model_dir), num_blocks=5, threads=1)
    assert tight.generate(prompts, params, progress=False) == roomy
    assert tight.stats().preemptions > 0


def test_a_prompt_that_can_never_run_is_refused_and_leaves_nothing(llm: LLM) -> None:
    with pytest.raises(NeverFits):
        llm.generate(["fine", [5] * 3000], GREEDY, progress=False)
    assert llm.stats().waiting == 0
    assert isinstance(llm.generate("fine", GREEDY, progress=False)[0], Completion)


def test_after_a_failed_call_the_next_one_starts_clean(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a step reported before the failure is not taken for the next call's."""

    def fail(*args: object) -> None:
        raise RuntimeError("no kernel")

    with monkeypatch.context() as broken:
        broken.setattr(llm._engine._loop._pipeline._executor._runner, "hidden", fail)
        with pytest.raises(GenerationFailed, match="prompt 0: RuntimeError: no kernel"):
            llm.generate("The sea", GREEDY, progress=False)
    assert llm.generate("The sea", GREEDY, progress=False)[0].token_ids


def test_a_token_id_outside_the_vocabulary_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidParam, match="prompt must be token ids from 0 to 49151, not 49152"):
        llm.generate([[5, 49_152]], GREEDY, progress=False)


def test_bad_settings_name_the_field_the_value_and_the_limit() -> None:
    with pytest.raises(InvalidParam, match="policy must be fcfs or priority, not 'random'"):
        LLM(policy="random")


def test_bad_arguments_name_the_field_the_value_and_the_limit(llm: LLM) -> None:
    with pytest.raises(InvalidParam, match="priority must be one for each of 2 prompts, not 1"):
        llm.generate(["a", "b"], GREEDY, priority=[1])


def test_a_completion_has_the_log_probabilities_that_were_asked_for(llm: LLM) -> None:
    asked = SamplingParams(temperature=0.0, max_tokens=12, logprobs=2, prompt_logprobs=0)
    told, plain = llm.generate([france(llm)] * 2, [asked, GREEDY], progress=False)
    assert (plain.logprobs, plain.prompt_logprobs) == ([], [])
    assert (told.text, told.token_ids) == (plain.text, plain.token_ids)
    assert [one.token for one in told.logprobs] == told.token_ids
    assert all(one.top[0] == (one.token, one.logprob) for one in told.logprobs), "it is greedy"
    assert all(-20 < one.logprob <= 0 for one in told.logprobs)
    prompt = told.prompt_logprobs
    assert prompt[0] is None
    assert [one.token for one in prompt[1:] if one] == told.prompt_token_ids[1:]
    assert llm.generate(france(llm), asked, progress=False) == [told]


def test_no_prompts_give_no_answers(llm: LLM) -> None:
    assert llm.generate([], GREEDY, progress=False) == []
