#!/bin/sh
# From `lateen cluster policy`: guarantees as reservations. A node of one that fails is replaced.
set -eu
scontrol create reservation ReservationName='deadline-2027' PartitionName='batch' StartTime=2027-01-10T08:00:00 EndTime=2027-01-12T08:00:00 NodeCnt=2 Accounts='physics' Flags=REPLACE_DOWN
