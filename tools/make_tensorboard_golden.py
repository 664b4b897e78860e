#!/usr/bin/env python3
"""Make tests/golden/train/tensorboard.events: an event file written by TensorBoard's own classes, with which tests/e2e/telemetry.py checks its reader.

    pip install tensorboard; python3 tools/make_tensorboard_golden.py [FOLDER]

Made with tensorboard 2.21.0. With FOLDER it reads the event files there instead, by TensorBoard's EventAccumulator, and prints each tag with its steps."""
import sys

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

if len(sys.argv) > 1:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    a = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
    a.Reload()
    for tag in sorted(a.Tags()["scalars"]):
        print(tag, *[f"{s.step}:{s.value:.9g}" for s in a.Scalars(tag)])
    sys.exit()
events = [Event(wall_time=1795000000.25, file_version="brain.Event:2"),
          Event(wall_time=1795000000.5, step=301, session_log=SessionLog(status=SessionLog.START)),
          Event(wall_time=1795000001.0, step=302, summary=Summary(value=[Summary.Value(tag="train/loss", simple_value=2.5),
                                                                        Summary.Value(tag="train/tokens", simple_value=1e9)]))]
with open("tests/golden/train/tensorboard.events", "wb") as f:
    writer = RecordWriter(f)
    for e in events:
        writer.write(e.SerializeToString())
    writer.flush()
