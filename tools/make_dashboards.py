#!/usr/bin/env python3
"""Make Grafana dashboards from one table: write deploy/grafana/*.json, or with --check compare them (exit status 1: they differ).

    python3 tools/make_dashboards.py [--check]

tests/e2e/monitoring.py runs every expression against a Prometheus that has scraped a real run."""
import json
import os
import sys

# title, kind, Grafana's unit, [(expression, legend)], description
RUNS = ("Lateen: runs", "lateen-runs", "run", "label_values(lateen_train_info, run)", [
    ("Step", "stat", "short", [('lateen_train_current_step{run=~"$run"}', "{{run}}")], "The last step."),
    ("Done", "gauge", "percentunit", [('lateen_train_current_step{run=~"$run"} / lateen_train_target_step{run=~"$run"}', "{{run}}")], "Share of the run's steps."),
    ("Left", "stat", "s", [('(lateen_train_target_step{run=~"$run"} - lateen_train_current_step{run=~"$run"}) * lateen_train_step_seconds{run=~"$run"}', "{{run}}")],
     "Time to the last step, at the speed of the newest step."),
    ("Age of the checkpoint", "stat", "s", [('time() - lateen_train_checkpoint_timestamp_seconds{run=~"$run"}', "{{run}}")], "The time that a fault would cost now."),
    ("Loss", "timeseries", "short", [('lateen_train_loss{run=~"$run"}', "{{run}}"), ('lateen_eval_loss{run=~"$run"}', "{{run}}, held-out")], "Mean cross-entropy, nats."),
    ("Gradient norm", "timeseries", "short", [('lateen_train_grad_norm{run=~"$run"}', "{{run}}")], "Before clipping."),
    ("Tokens a second", "timeseries", "short", [('lateen_train_tokens_per_second{run=~"$run"}', "{{run}}, newest step"),
                                               ('rate(lateen_train_tokens_total{run=~"$run"}[$__rate_interval])', "{{run}}, by the clock")],
     "For a step, and by the clock, which includes checkpoints and validation."),
    ("MFU", "timeseries", "percentunit", [('lateen_train_mfu{run=~"$run"}', "{{run}}")], "Share of the device's measured peak."),
    ("Where the time goes", "bands", "percentunit", [('sum by (kind) (rate(lateen_train_seconds_total{run=~"$run"}[$__rate_interval])) / ignoring(kind) group_left '
                                                      'sum(rate(lateen_train_seconds_total{run=~"$run"}[$__rate_interval]))', "{{kind}}")],
     "Every second is productive, checkpoint, restart, rework, stall or evaluation."),
    ("Goodput of the last hour", "stat", "percentunit", [('lateen:goodput:ratio_1h{run=~"$run"}', "{{run}}")], "Productive time as a share of all time."),
    ("Seconds of a step", "timeseries", "s", [('lateen_train_step_seconds{run=~"$run"}', "{{run}}"), ('lateen_train_wait_seconds{run=~"$run"}', "{{run}}, waiting for rows")], ""),
    ("Learning rate", "timeseries", "short", [('lateen_train_lr{run=~"$run"}', "{{run}}")], ""),
    ("Skipped updates", "timeseries", "short", [('increase(lateen_train_skipped_updates_total{run=~"$run"}[$__rate_interval])', "{{run}}")], "Updates whose losses or gradients were not finite or far from normal."),
    ("Checkpoints", "timeseries", "short", [('lateen_train_checkpoint_step{run=~"$run"}', "{{run}}")], "Step of the last checkpoint."),
    ("Memory of the host", "timeseries", "bytes", [('process_resident_memory_bytes{job="lateen-runs"}', "{{instance}}")], ""),
    ("Attempts", "table", "short", [('lateen_train_info{run=~"$run"}', "")], "Attempt, epoch of the ranks, version, model.")])
NODES = ("Lateen: nodes", "lateen-nodes", "node", "label_values(lateen_health_result, node)", [
    ("Unfit nodes", "stat", "short", [("count(lateen_health_result >= 2) or vector(0)", "")], "Nodes with the result drain or evict."),
    ("Nodes with warnings", "stat", "short", [("count(lateen_health_result == 1) or vector(0)", "")], ""),
    ("Nodes that answer", "stat", "short", [('sum(up{job="lateen-nodes"})', "")], ""),
    ("Age of the oldest check", "stat", "s", [("max(time() - lateen_health_timestamp_seconds)", "")], ""),
    ("Result", "timeseries", "short", [('lateen_health_result{node=~"$node"}', "{{node}}")], "0 ok, 1 warn, 2 drain, 3 evict."),
    ("What is wrong", "table", "short", [('lateen_health_check_result{node=~"$node"} > 0', "")], "Checks whose result is worse than ok."),
    ("Values of those checks", "table", "short", [('lateen_health_check_value{node=~"$node"} and lateen_health_check_result > 0', "")], ""),
    ("GPU temperature", "timeseries", "celsius", [('DCGM_FI_DEV_GPU_TEMP{Hostname=~"$node"}', "{{Hostname}} {{gpu}}")], ""),
    ("GPU power", "timeseries", "watt", [('DCGM_FI_DEV_POWER_USAGE{Hostname=~"$node"}', "{{Hostname}} {{gpu}}")], ""),
    ("GPU clock", "timeseries", "short", [('DCGM_FI_DEV_SM_CLOCK{Hostname=~"$node"}', "{{Hostname}} {{gpu}}")], "MHz."),
    ("GPU utilisation", "timeseries", "percent", [('DCGM_FI_DEV_GPU_UTIL{Hostname=~"$node"}', "{{Hostname}} {{gpu}}")], ""),
    ("GPU memory", "timeseries", "percentunit", [('DCGM_FI_DEV_FB_USED{Hostname=~"$node"} / (DCGM_FI_DEV_FB_USED{Hostname=~"$node"} + DCGM_FI_DEV_FB_FREE{Hostname=~"$node"})',
                                                "{{Hostname}} {{gpu}}")], "In use."),
    ("Energy", "timeseries", "watt", [('rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{Hostname=~"$node"}[$__rate_interval]) / 1000', "{{Hostname}} {{gpu}}")], "Mean power, from the GPU's energy counter."),
    ("NVLink errors", "timeseries", "short", [('rate(DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL{Hostname=~"$node"}[$__rate_interval])', "{{Hostname}} {{gpu}} CRC"),
                                             ('rate(DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL{Hostname=~"$node"}[$__rate_interval])', "{{Hostname}} {{gpu}} replay")], "A second."),
    ("PCIe replays and lanes", "timeseries", "short", [('rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{Hostname=~"$node"}[$__rate_interval])', "{{Hostname}} {{gpu}} replays a second"),
                                                      ('DCGM_FI_DEV_PCIE_LINK_WIDTH{Hostname=~"$node"}', "{{Hostname}} {{gpu}} lanes")], ""),
    ("Free space", "timeseries", "percentunit", [('lateen_health_check_value{node=~"$node",check="fs.free_share"}', "{{node}} {{object}}")], ""),
    ("Available memory", "timeseries", "percentunit", [('lateen_health_check_value{node=~"$node",check="mem.available_share"}', "{{node}}")], ""),
    ("Score of lemons", "timeseries", "short", [('lateen_health_check_value{node=~"$node",check="lemon.score"}', "{{node}}")], "How many of seven signals are at their level. Needs --history.")])
SERVE = ("Lateen: serving", "lateen-serve", "instance", "label_values(vllm:num_requests_running, instance)", [
    ("Requests running", "timeseries", "short", [('vllm:num_requests_running{instance=~"$instance"}', "{{instance}}")], ""),
    ("Requests waiting", "timeseries", "short", [('vllm:num_requests_waiting{instance=~"$instance"}', "{{instance}}")], ""),
    ("Cache in use", "timeseries", "percentunit", [('vllm:kv_cache_usage_perc{instance=~"$instance"}', "{{instance}}")], "Share of the pages of keys and values."),
    ("Tokens a second", "timeseries", "short", [('rate(vllm:generation_tokens_total{instance=~"$instance"}[$__rate_interval])', "{{instance}}, made"),
                                               ('rate(vllm:prompt_tokens_total{instance=~"$instance"}[$__rate_interval])', "{{instance}}, read")], ""),
    ("First token", "timeseries", "s", [(f'histogram_quantile({q}, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket{{instance=~"$instance"}}[$__rate_interval])))', f"p{round(100 * q)}")
                                        for q in (0.5, 0.99)], "From the request to its first token."),
    ("Between tokens", "timeseries", "s", [(f'histogram_quantile({q}, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket{{instance=~"$instance"}}[$__rate_interval])))', f"p{round(100 * q)}")
                                           for q in (0.5, 0.99)], ""),
    ("Whole request", "timeseries", "s", [('histogram_quantile(0.5, sum by (le) (rate(vllm:e2e_request_latency_seconds_bucket{instance=~"$instance"}[$__rate_interval])))', "p50")], ""),
    ("Requests by how they ended", "timeseries", "short", [('sum by (finished_reason) (rate(vllm:request_success_total{instance=~"$instance"}[$__rate_interval]))', "{{finished_reason}}")], "A second."),
    ("Hits of the prefix cache", "timeseries", "percentunit", [('rate(vllm:prefix_cache_hits_total{instance=~"$instance"}[$__rate_interval]) / '
                                                              'rate(vllm:prefix_cache_queries_total{instance=~"$instance"}[$__rate_interval])', "{{instance}}")], "Share of the prompts' tokens."),
    ("Refused and failed", "timeseries", "short", [('rate(lateen_http_errors_total{instance=~"$instance"}[$__rate_interval])', "{{instance}}, errors"),
                                                  ('rate(lateen_queue_full_total{instance=~"$instance"}[$__rate_interval])', "{{instance}}, queue full")], "A second."),
    ("Connections", "timeseries", "short", [('lateen_connections{instance=~"$instance"}', "{{instance}}")], ""),
    ("Memory", "timeseries", "bytes", [('process_resident_memory_bytes{job="lateen-serve"}', "{{instance}}")], "")])
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, HEIGHT = 24, 8


def panel(i, row):
    title, kind, unit, targets, description = row
    custom = {"drawStyle": "line", "fillOpacity": 80, "stacking": {"mode": "normal"}} if kind == "bands" else {}
    grafana = "timeseries" if kind == "bands" else kind
    width = COLUMNS // 2 if grafana in ("timeseries", "table") else COLUMNS // 4
    return {"id": i + 1, "title": title, "type": grafana, "description": description, "datasource": SOURCE, "w": width,
            "fieldConfig": {"defaults": {"unit": unit, **({"min": 0, "max": 1} if unit == "percentunit" else {}), "custom": custom}, "overrides": []},
            "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}} if grafana == "timeseries" else {},
            "targets": [{"refId": chr(ord("A") + k), "datasource": SOURCE, "expr": expr, "legendFormat": legend, **({"format": "table", "instant": True} if kind == "table" else {})}
                        for k, (expr, legend) in enumerate(targets)]}


def place(panels):
    """Place the panels from left to right, then down."""
    x = y = 0
    for p in panels:
        w = p.pop("w")
        if x + w > COLUMNS:
            x, y = 0, y + HEIGHT
        p["gridPos"] = {"x": x, "y": y, "w": w, "h": HEIGHT}
        x += w
    return panels


def dashboard(title, uid, variable, query, rows):
    return {"title": title, "uid": uid, "tags": ["lateen"], "schemaVersion": 38, "version": 1, "editable": True, "refresh": "30s", "time": {"from": "now-6h", "to": "now"},
            "templating": {"list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
                {"name": variable, "type": "query", "datasource": SOURCE, "query": {"query": query, "refId": variable}, "definition": query, "refresh": 2, "multi": True, "includeAll": True,
                 "allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]}}]},
            "panels": place([panel(i, r) for i, r in enumerate(rows)])}


folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "deploy", "grafana")
stale = []
for board in (RUNS, NODES, SERVE):
    path, text = os.path.join(folder, board[1] + ".json"), json.dumps(dashboard(*board), indent=1) + "\n"
    if "--check" in sys.argv:
        stale += [path] if not os.path.exists(path) or open(path).read() != text else []
    else:
        with open(path, "w") as f:
            f.write(text)
print("\n".join(os.path.basename(p) + " differs from tools/make_dashboards.py" for p in stale), end="\n" if stale else "")
sys.exit(bool(stale))
