#!/usr/bin/env python3
"""Write recipes/clusters/runs.yaml: how Megatron-Bridge's published benchmarks were run, release by release.

Its performance page prints parallel degrees and batch, but not the other settings that determine the time: CUDA graphs, which modules are recomputed, how tokens
reach their experts, and whether that overlaps. The recipes behind the page are in its repository, and each release has a tag.

    tools/make_plan_runs.py path/to/clone/of/NVIDIA-NeMo/Megatron-Bridge > recipes/clusters/runs.yaml

It reads configuration only, never the page with the results. Tables of dataclasses are executed; the first release's YAML is read. From v0.6.0
(26.08) on, the recipes are functions that call each other, which this script does not read; that release is assumed to run as v0.5.1 did.
Each line is   model/gpu/precision[/batch]: facts   where the batch is given only if its facts differ."""
import re
import subprocess
import sys
import types

RELEASES = [("2509", "v0.1.0rc4"), ("2511", "v0.2.0"), ("2602", "v0.3.0"), ("260201", "v0.3.1"), ("2604", "v0.4.0"),
            ("260401", "v0.4.1"), ("2606", "v0.5.0"), ("260601", "v0.5.1")]
MODELS = {"DEEPSEEK_V3": "deepseek-v3", "GPT_OSS_120B": "gpt-oss-120b", "GPT_OSS_20B": "gpt-oss-20b", "KIMI_K2": "kimi-k2",
          "LLAMA31_405B": "llama31-405b", "LLAMA3_70B": "llama3-70b", "LLAMA3_8B": "llama3-8b",
          "NEMOTRON_3_NANO": "nemotron3-nano", "NEMOTRON_3_SUPER": "nemotron3-super", "NEMOTRON_3_ULTRA": "nemotron3-ultra",
          "QWEN3_235B_A22B": "qwen3-235b-a22b", "QWEN3_30B_A3B": "qwen3-30b-a3b"}
PRECISIONS = {"BF16": "bf16", "FP8_CS": "fp8", "FP8CS": "fp8", "FP8_MX": "mxfp8", "FP8MX": "mxfp8", "NVFP4": "nvfp4"}
NAME = re.compile(r"^(%s)(?:_(PRETRAIN|SFT|LORA|PEFT))?_(?:\d+GPU_)?(H100|B200|GB200|B300|GB300)(?:_(SFT|LORA))?_(%s)(.*)$"
                  % ("|".join(MODELS), "|".join(PRECISIONS)))
GRAPHS = {"moe_router": "router", "moe_preprocess": "router", "attn": "attn", "mamba": "mamba", "mlp": "mlp"}


def git(*words):
    return subprocess.run(["git", "-C", sys.argv[1], *words], capture_output=True, text=True, check=True).stdout


def facts(run):
    """The facts of one run; `run` has the values of the dataclass's fields, by their names."""
    scope = run.get("cuda_graph_scope") or []
    scope = [scope] if isinstance(scope, str) else scope
    impl = run.get("cuda_graph_impl") or "none"
    words = []
    if impl == "full_iteration" or (impl == "local" and "full_iteration" in scope):
        words.append("graph:full")
    elif impl == "transformer_engine":
        parts = sorted({GRAPHS[s] for s in scope if s in GRAPHS})
        words.append("graph:" + "+".join(parts) if parts else "")
    if (run.get("pipeline_model_parallel_size") or 1) > 1:
        words.append(f"pp:{run['pipeline_model_parallel_size']}x{run.get('virtual_pipeline_model_parallel_size') or 1}")
    if (run.get("micro_batch_size") or 1) > 1:
        words.append(f"mb:{run['micro_batch_size']}")
    words.append(run.get("moe_flex_dispatcher_backend") or "")
    words.append("overlap" if run.get("moe_a2a_overlap") else "")
    words.append("fsdp" if run.get("use_megatron_fsdp") else "")
    words.append("attn8" if run.get("fp8_dot_product_attention") else "")
    modules = run.get("recompute_modules") or []
    words.append("again:" + "+".join(sorted(modules)) if modules else "")
    layers = run.get("recompute_num_layers")
    words.append(f"layers:{layers}" if layers else "")
    offload = run.get("cpu_offloading_num_layers")
    words.append(f"offload:{offload}" if offload else "")
    return " ".join(w for w in words if w) or "plain"


def key_of(name):
    m = NAME.match(name)
    if m is None or m.group(6) not in ("", "_V1", "_V2", "_BASE", "_CONFIG"):
        return None
    task = (m.group(2) or m.group(4) or "PRETRAIN").replace("PEFT", "LORA")
    model = MODELS[m.group(1)] + ("" if task == "PRETRAIN" else "-" + task.lower())
    return f"{model}/{m.group(3).lower()}/{PRECISIONS[m.group(5)]}"


def tables(tag, files):
    """The runs of a release with dataclasses: (name, fields)."""
    utils = "\n".join(git("show", f"{tag}:{f}") for f in files if re.search(r"performance/utils/(utils|helpers)\.py$", f))
    source = re.search(r"@dataclass\nclass WorkloadBaseConfig.*?(?=\n(?:def |@|class )[^\n]|\Z)", utils, re.S).group(0)
    module = types.ModuleType("utils.utils")
    sys.modules.update({"utils": types.ModuleType("utils"), "utils.utils": module, "utils.helpers": module})
    exec("from dataclasses import dataclass, field\nfrom typing import *\n" + source, module.__dict__)
    for f in files:
        if re.search(r"performance/configs/.*workload_base_configs\.py$", f):
            names = {"__name__": "run"}
            exec(git("show", f"{tag}:{f}"), names)
            for name, value in names.items():
                if isinstance(value, module.WorkloadBaseConfig):
                    yield name.replace("_CONFIG", "").replace("_BASE", ""), value.__dict__


def matrices(tag, files):
    """The runs of the first release, from YAML, without the scopes of graphs; expert traffic went through NCCL's all-to-all, or DeepEP on H100."""
    import yaml
    for f in files:
        m = re.search(r"performance/configs/[^/]+/(.+)_llm_pretrain\.yaml$", f)
        for gpu, sizes in (yaml.safe_load(git("show", f"{tag}:{f}")).get("perf_matrix") or {}).items() if m else ():
            for cells in sizes.values():
                common = cells.pop("common", {})
                for precision, own in cells.items():
                    c = {**common, **(own or {})}
                    if precision.upper() in PRECISIONS:
                        yield f"{m.group(1)}_{gpu}_{precision}".upper(), {
                            "cuda_graph_impl": "full_iteration" if c.get("cuda_graphs") and c.get("ep", 1) == 1 else
                                               "transformer_engine" if c.get("cuda_graphs") else None,
                            "cuda_graph_scope": ["attn"] if c.get("cuda_graphs") and c.get("ep", 1) > 1 else None,
                            "micro_batch_size": c.get("mbs"), "pipeline_model_parallel_size": c.get("pp"),
                            "virtual_pipeline_model_parallel_size": c.get("vp"),
                            "use_megatron_fsdp": c.get("use_megatron_fsdp") or c.get("fsdp"),
                            "recompute_num_layers": c.get("recompute_num_layers"),
                            "cpu_offloading_num_layers": c.get("cpu_offloading_num_layers"),
                            "global_batch_size": c.get("gbs", 0)}


def release(tag):
    files = git("ls-tree", "-r", "--name-only", tag).split("\n")
    if any(re.search(r"/configs/.*workload_base_configs\.py$", f) for f in files):
        runs = tables(tag, files)
    else:
        runs = matrices(tag, files)
    found = {}
    for name, run in runs:
        key = key_of(name)
        if key is not None:
            found.setdefault(key, {})[int(run.get("global_batch_size") or 0)] = facts(run)
    flat = {}
    for key, by_batch in found.items():
        last = max(by_batch)
        if last > 0:
            by_batch.pop(0, None)
        flat[key] = by_batch[last]
        for batch, text in by_batch.items():
            if text != by_batch[last]:
                flat[f"{key}/{batch}"] = text
    return flat


print("# How Megatron-Bridge's published benchmarks were run, from the recipes in its repository at each release's tag. Written by")
print("# tools/make_plan_runs.py. A release lists only what differs from the releases above it.")
print("#   graph:             what part of a step CUDA graphs capture")
print("#   hybridep, deepep   a token is sent once to a node; otherwise NCCL's all-to-all")
print("#   overlap            expert traffic runs beside another micro-batch's computation")
print("#   again:             modules that run again in the backward pass")
print("#   pp:4x5             4 pipeline stages of 5 chunks each")
print("#   mb:                sequences of a micro-batch, if not 1")
print("#   layers:            layers that are recomputed whole")
print("#   offload:           layers whose activations go to the host")
print("#   fsdp               Megatron's FSDP")
print("#   attn8              attention's own products run in 8 bits too")
before = {}
for number, tag in RELEASES:
    now = release(tag)
    print(f"bridge-{number}: # {tag}")
    before = {**before, **{k: v for k, v in now.items() if before.get(k) != v and not print(f'  "{k}": "{v}"')}}
