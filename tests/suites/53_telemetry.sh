# What runs and nodes tell: Prometheus's text format and OpenMetrics (promtool), event files of TensorBoard, messages as JSON, where the time went.
beside "telemetry" python3 tests/e2e/telemetry.py build/lateen
# Alerts, dashboards and targets of deploy/, and the page of the cluster, against a real Prometheus that scrapes a run, a node and a server.
beside "monitoring" python3 tests/e2e/monitoring.py build/lateen
