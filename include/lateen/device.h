/* device.h: an open device: where memory lies and work runs. A device is passed as an argument,
 * never global. A process may drive several at the same time, each from its own thread; one thread
 * drives one device at a time.
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

/* The index in the environment variable LATEEN_CUDA_DEVICE, or 0 if it is not set. */
#define LT_DEVICE_DEFAULT (-1)

/* Open a device. index selects the GPU; for a CPU device it is only a label. A GPU that does not
 * exist is UNSUPPORTED or NOT_FOUND, and the message says how many there are. Close *out with
 * lt_device_close, after everything that uses it. */
LT_MUST_USE lt_err lt_device_open(lt_device **out, lt_device_kind kind, int index);
/* A CPU device with a pool of n_threads threads (0: one per core) on these cores ("0-3,8"; "":
 * those on which the driving thread may run). With 0 and "" it uses the number of threads that the
 * driving thread has set (base/thread.h), as a device of lt_device_open does. Results do not depend
 * on the number of threads. */
LT_MUST_USE lt_err lt_device_open_cpu(lt_device **out, int n_threads, const char *cores);
/* Open a device by name: "cpu", "cpu:0-3" (those cores), "cuda", "cuda:1" or "auto". */
LT_MUST_USE lt_err lt_device_open_named(lt_device **out, const char *name);
/* The same for one of several ranks on a machine: "cuda" and "auto" are GPU number local_rank; or
 * the only GPU that this process sees; or the one in LATEEN_CUDA_DEVICE. For "cuda:1" ARG: ranks do
 * not share a GPU. */
LT_MUST_USE lt_err lt_device_open_rank(lt_device **out, const char *name, int local_rank);
/* As lt_device_open_named, but a GPU, which takes 0.2 s to open, is opened by another thread
 * while the caller continues. lt_device_ready waits for that and returns its error; opening a model
 * calls it too. */
LT_MUST_USE lt_err lt_device_open_async(lt_device **out, const char *name);
LT_MUST_USE lt_err lt_device_ready(lt_device *d);
/* The kind that lt_device_open_named would open; for an unknown name ARG, and the message lists the
 * names. */
LT_MUST_USE lt_err lt_device_name_kind(lt_device_kind *out, const char *name);
void lt_device_close(lt_device *d); /* Accepts NULL. */

#define LT_DEVICE_NAMES "cpu[:CORES]|cuda[:N]|auto"

#endif
