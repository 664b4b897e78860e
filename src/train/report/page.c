/* page.c: `lateen train --page PORT`: the report of a run that trains, at 127.0.0.1. The server's
 * thread reads only the files of the run folder; the training loop is not involved. GET / is the
 * report, GET /data.json its data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "platform/telemetry/listen.h"
#include "train/report/report.h"
#include "train/report/report_page.h"

struct lt_page {
    char run_folder[LT_PATH_BYTES];
    lt_listener *listener;
};

static lt_err answer_data(void *ctx, const char *accept, lt_answer *out) {
    const lt_page *p = ctx;
    (void)accept;
    LT_TRY(lt_report_data(&out->text, p->run_folder, LT_REPORT_ROWS));
    out->type = "application/json";
    out->bytes = strlen(out->text);
    return LT_OK;
}

/* Without data, which the first fetch brings. */
static lt_err answer_page(void *ctx, const char *accept, lt_answer *out) {
    (void)ctx;
    (void)accept;
    out->text = strdup(lt_report_page);
    if (out->text == NULL) {
        LT_FAIL(LT_ERR_OOM, "page");
    }
    out->type = "text/html; charset=utf-8";
    out->bytes = strlen(out->text);
    return LT_OK;
}

static const lt_listen_route routes[] = {
    {"/data.json", answer_data}, {"/", answer_page}, {"/report.html", answer_page}};

lt_err lt_page_open(lt_page **out, const char *run_folder, int port) {
    lt_err err = LT_OK;
    char at[32];
    lt_page *p = calloc(1, sizeof *p);

    if (p == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "page");
    }
    snprintf(p->run_folder, sizeof p->run_folder, "%s", run_folder);
    snprintf(at, sizeof at, "127.0.0.1:%d", port);
    LT_TRY_DONE(
        lt_listen_open(&p->listener, "page", at, routes, (int)(sizeof routes / sizeof *routes), p));
    *out = p;
    p = NULL;
done:
    lt_page_close(p);
    return err;
}

void lt_page_close(lt_page *p) {
    if (p == NULL) {
        return;
    }
    lt_listen_close(p->listener);
    free(p);
}
