"""A recorded machine for `lateen health --machine`: a folder with the files of /proc, /sys and /dev that checks read, and recorded.json for the rest. It is healthy, with two H100, an Ethernet interface and an InfiniBand port; tests change one thing at a time."""
import json
import os

GPU = {"sm_clock_mhz": 1980, "sm_clock_max_mhz": 1980, "memory_clock_mhz": 2619, "memory_temperature_c": 60, "temperature_c": 50, "power_w": 600,
       "power_limit_w": 700, "energy_mj": 1e9, "pcie_replays": 0, "pcie_width": 16, "pcie_width_max": 16, "pcie_generation": 5, "utilisation": 90,
       "memory_utilisation": 40, "memory_free_mib": 81000, "memory_used_mib": 500, "ecc_corrected": 0, "ecc_uncorrected": 0, "rows_uncorrected": 0,
       "rows_corrected": 0, "rows_pending": 0, "rows_failed": 0, "throttle_reasons": 4, "nvlinks_up": 18, "nvlinks_down": 0, "nvlink_replays": 0,
       "nvlink_recoveries": 0, "nvlink_crc_flits": 0, "nvlink_crc_data": 0}
PCI = ["0000:18:00.0", "0000:3b:00.0"]
RECORDED = {"gpus": [{"index": i, "name": "NVIDIA H100", "uuid": f"GPU-{i}", "pci": "0000" + PCI[i].upper(), **GPU} for i in range(2)],
            "mounts": {m: {"bytes": 1e12, "free_bytes": 5e11, "files": 1e8, "free_files": 9e7} for m in ("/", "/scratch")},
            "time": {"synchronised": True, "error_s": 0.01}}
NET, IB, CPU, EDAC = "sys/class/net/eth0", "sys/class/infiniband/mlx5_0/ports/1", "sys/devices/system/cpu", "sys/devices/system/edac/mc/mc0"
FILES = {
    "proc/uptime": "200000.00 100000.00\n", "proc/sys/kernel/random/boot_id": "boot-one\n", "proc/loadavg": "1.00 2.00 3.00 1/100 1234\n",
    "proc/meminfo": "MemTotal:  1000000 kB\nMemFree:  100 kB\nMemAvailable:  800000 kB\n", "proc/vmstat": "nr_free_pages 1\noom_kill 0\n",
    "proc/stat": "cpu 1 2 3\nprocs_running 1\nprocs_blocked 0\n",
    "proc/mounts": "/dev/sda1 / ext4 rw,relatime 0 0\nfs:/scratch /scratch lustre rw,flock 0 0\n",
    "dev/kmsg": "6,1,1000,-;Linux version 6.1\n SUBSYSTEM=x\n6,2,199000000000,-;usb 1-1: new device\n",
    f"{NET}/flags": "0x1003\n", f"{NET}/operstate": "up\n", f"{NET}/speed": "100000\n", f"{NET}/carrier_down_count": "0\n", f"{NET}/device/vendor": "0x15b3\n",
    f"{NET}/statistics/rx_errors": "0\n", f"{NET}/statistics/tx_errors": "0\n",
    "sys/class/net/lo/flags": "0x9\n", "sys/class/net/lo/operstate": "unknown\n", "sys/class/net/eth1/flags": "0x1002\n", "sys/class/net/eth1/operstate": "down\n",
    "sys/class/net/eth1/device/vendor": "0x15b3\n",
    f"{IB}/state": "4: ACTIVE\n", f"{IB}/rate": "400 Gb/sec (4X NDR)\n", f"{IB}/counters/symbol_error": "0\n", f"{IB}/counters/port_rcv_errors": "0\n",
    f"{IB}/counters/link_downed": "0\n", f"{IB}/counters/link_error_recovery": "0\n",
    f"{CPU}/present": "0-7\n", f"{CPU}/online": "0-7\n", f"{CPU}/cpu0/thermal_throttle/package_throttle_count": "0\n",
    f"{EDAC}/ue_count": "0\n", f"{EDAC}/ce_count": "0\n",
    **{f"sys/bus/pci/devices/{p}/{k}": v for p in PCI for k, v in (("vendor", "0x10de\n"), ("class", "0x030200\n"))},
    "sys/bus/pci/devices/0000:00:1f.0/vendor": "0x8086\n", "sys/bus/pci/devices/0000:00:1f.0/class": "0x060100\n"}


def write(folder, files=(), recorded=None, without=()):
    """The healthy machine with these differences."""
    for path, text in {**FILES, **dict(files)}.items():
        if path not in without:
            os.makedirs(os.path.dirname(f"{folder}/{path}"), exist_ok=True)
            with open(f"{folder}/{path}", "w") as f:
                f.write(text)
    with open(f"{folder}/recorded.json", "w") as f:
        json.dump(recorded or RECORDED, f)
    return folder


def gpu(**changed):
    """The recorded readings, with other readings for the second GPU."""
    r = json.loads(json.dumps(RECORDED))
    r["gpus"][1].update(changed)
    return r


def log(text, at="199500000000"):
    return {"dev/kmsg": FILES["dev/kmsg"] + f"3,9,{at},-;{text}\n"}


def xid(number, pci="0000:3b:00", **more):
    return log(f"NVRM: Xid (PCI:{pci}): {number}, pid=77, name=python", **more)
