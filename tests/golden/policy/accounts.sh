#!/bin/sh
# From `lateen cluster policy`: accounts and QOS of tenants; run again, it changes what is there.
# 64 of 64 GPUs live; slack 8, guarantees at most 16.
set -eu
qos() { # NAME OPTION...
    name=$1
    shift
    [ -n "$(sacctmgr --noheader --parsable2 list qos where name="$name" format=name)" ] || sacctmgr --immediate add qos "$name"
    sacctmgr --immediate modify qos where name="$name" set "$@"
}
account() { # NAME OPTION...
    name=$1
    shift
    [ -n "$(sacctmgr --noheader --parsable2 list account where name="$name" format=account)" ] || sacctmgr --immediate add account "$name"
    sacctmgr --immediate modify account where name="$name" set "$@"
}
user() { # NAME ACCOUNT
    [ -n "$(sacctmgr --noheader --parsable2 list associations where user="$1" account="$2" format=user)" ] || sacctmgr --immediate add user "$1" account="$2"
}

qos 'physics-borrow' priority=0 GrpTRES=gres/gpu=32 PreemptMode=requeue GraceTime=120 PreemptExemptTime=0:10:00
qos 'chemistry-borrow' priority=0 GrpTRES=gres/gpu=48 PreemptMode=requeue GraceTime=120 PreemptExemptTime=0:10:00
borrowed='physics-borrow,chemistry-borrow'
qos 'physics' priority=200 GrpTRES=gres/gpu=24 Preempt="$borrowed"
qos 'physics-guarantee' priority=200 GrpTRES=gres/gpu=16 Preempt="$borrowed" flags=RequiresReservation
account 'physics' fairshare=2 qos='physics,physics-borrow,physics-guarantee' DefaultQOS='physics'
user 'alice' 'physics'
user 'bob' 'physics'
qos 'chemistry' priority=100 GrpTRES=gres/gpu=16 Preempt="$borrowed"
account 'chemistry' fairshare=1 qos='chemistry,chemistry-borrow' DefaultQOS='chemistry'
user 'carol' 'chemistry'
