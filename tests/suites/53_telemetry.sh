# What runs and nodes report: Prometheus's text format and OpenMetrics (promtool), event files of
# TensorBoard, messages as JSON, where the time went.
beside "telemetry" python3 tests/e2e/telemetry.py build/lateen
