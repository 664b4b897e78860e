/* device.h: a device, opened: where memory is and work runs. It is passed, never global. A process
 * may drive several at the same time, each from a thread of its own; one thread drives one device
 * at a time.
 *
 *     lt_device *d;
 *     LT_TRY(lt_device_open(&d, LT_DEVICE_CUDA, 1));
 *     LT_TRY(lt_model_open(&m, path, &(lt_model_options){.device = d}));
 *     ...
 *     lt_model_close(m);
 *     lt_device_close(d); */
#ifndef LATEEN_DEVICE_H
#define LATEEN_DEVICE_H

#include "lateen/base.h"

typedef struct lt_device lt_device;

/* AUTO: a GPU if there is one, else the CPU. */
typedef enum { LT_DEVICE_CPU, LT_DEVICE_CUDA, LT_DEVICE_AUTO } lt_device_kind;

/* The index that stands for LATEEN_CUDA_DEVICE, or 0 where that is not set. */
#define LT_DEVICE_DEFAULT (-1)

/* Open a device. index: which GPU; of a CPU device only a number to tell it from others. An absent
 * GPU is UNSUPPORTED or NOT_FOUND and the message says how many there are. The caller owns *out and
 * frees it with lt_device_close after all that uses it. */
LT_MUST_USE lt_err lt_device_open(lt_device **out, lt_device_kind kind, int index);
/* A CPU device with a pool of n_threads threads (0: one a core) on these cores ("0-3,8"; "": where
 * the thread that drives it may run). With neither it computes with as many threads as the thread
 * that drives it has set (base/thread.h), as lt_device_open's does. Results do not depend on the
 * number of threads. */
LT_MUST_USE lt_err lt_device_open_cpu(lt_device **out, int n_threads, const char *cores);
/* The device that a user names: "cpu", "cpu:0-3" (those cores), "cuda", "cuda:1" or "auto". */
LT_MUST_USE lt_err lt_device_open_named(lt_device **out, const char *name);
/* The same, but a GPU, which takes 0.2 s, is opened by a thread while the caller does what needs
 * none of it. lt_device_ready waits for it and tells of a failure; opening a model asks it too. */
LT_MUST_USE lt_err lt_device_open_beside(lt_device **out, const char *name);
LT_MUST_USE lt_err lt_device_ready(lt_device *d);
/* Which kind lt_device_open_named would look for; ARG with the names that there are. */
LT_MUST_USE lt_err lt_device_name_kind(lt_device_kind *out, const char *name);
void lt_device_close(lt_device *d); /* Accepts NULL. */

#define LT_DEVICE_NAMES "cpu[:CORES]|cuda[:N]|auto"

#endif
