/* aws_config.c: see aws_config.h. Messages name files, profiles and lines, never a value. */
#include "platform/copy/aws_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>

#include "base/error.h"
#include "base/file.h"

#define FILE_MOST ((size_t)1 << 20)

typedef struct {
    const char *text;
    size_t n;
} slice;

static bool blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

static slice trim(const char *text, size_t n) {
    while (n > 0 && blank(text[n - 1])) {
        n--;
    }
    while (n > 0 && blank(*text)) {
        text++;
        n--;
    }
    return (slice){text, n};
}

static bool is(slice s, const char *text) {
    return strlen(text) == s.n && memcmp(s.text, text, s.n) == 0;
}

/* Does the name of this line, below `parent` if it is indented, equal `name`? */
static bool names(slice parent, slice own, const char *name) {
    if (parent.n == 0) {
        return is(own, name);
    }
    return strncmp(name, parent.text, parent.n) == 0 && name[parent.n] == '.' &&
           is(own, name + parent.n + 1);
}

lt_err lt_ini_get(const char *text, const char *section, const char *name, char *out, size_t room,
                  bool *found) {
    bool inside = false;
    slice parent = {0};
    long line = 0;

    *found = false;
    for (const char *p = text; p != NULL && *p != '\0';) {
        const size_t n = strcspn(p, "\n");
        const slice whole = trim(p, n);
        const char *equal = memchr(whole.text, '=', whole.n);
        const bool indented = whole.text > p;
        p += n + (p[n] == '\n');
        line++;
        if (whole.n == 0 || whole.text[0] == '#' || whole.text[0] == ';') {
            continue;
        }
        if (whole.text[0] == '[' && !indented) {
            if (whole.text[whole.n - 1] != ']') {
                LT_FAIL(LT_ERR_FORMAT, "line %ld: a section without ']'", line);
            }
            inside = is(trim(whole.text + 1, whole.n - 2), section);
            parent.n = 0;
            continue;
        }
        if (equal == NULL) {
            LT_FAIL(LT_ERR_FORMAT, "line %ld: neither a section nor 'name = value'", line);
        }
        const slice own = trim(whole.text, (size_t)(equal - whole.text));
        const slice value = trim(equal + 1, whole.n - (size_t)(equal + 1 - whole.text));
        if (!indented) {
            parent = value.n == 0 ? own : (slice){0};
        }
        if (inside && value.n > 0 && names(indented ? parent : (slice){0}, own, name)) {
            if (value.n >= room) {
                LT_FAIL(LT_ERR_LIMIT, "line %ld: '%s' has %zu bytes; at most %zu", line, name,
                        value.n, room - 1);
            }
            memcpy(out, value.text, value.n);
            out[value.n] = '\0';
            *found = true; /* The last one counts, as for the AWS command line. */
        }
    }
    return LT_OK;
}

typedef struct {
    char path[LT_PATH_BYTES];
    char *text; /* NULL: there is no such file. */
    char section[256];
} ini;

static void ini_close(ini *f) {
    if (f->text != NULL) {
        OPENSSL_cleanse(f->text, strlen(f->text));
        free(f->text);
    }
}

static lt_err ini_open(ini *f, const char *variable, const char *fallback) {
    const char *own = getenv(variable), *home = getenv("HOME");
    size_t bytes = 0;
    lt_err err;
    const int n = own != NULL && own[0] != '\0' ? snprintf(f->path, sizeof f->path, "%s", own)
                                                : snprintf(f->path, sizeof f->path, "%s/%s",
                                                           home != NULL ? home : "", fallback);
    if (n >= (int)sizeof f->path) {
        LT_FAIL(LT_ERR_LIMIT, "%s: a path of %d bytes", variable, n);
    }
    err = lt_file_read(&f->text, &bytes, f->path, FILE_MOST);
    if (err == LT_ERR_NOT_FOUND) {
        f->text = NULL;
        return LT_OK;
    }
    LT_TRY(err);
    if (strlen(f->text) != bytes) {
        LT_FAIL(LT_ERR_FORMAT, "%s holds a zero byte", f->path);
    }
    return LT_OK;
}

/* A value of the file's section, if `out` has none yet. */
static lt_err take(const ini *f, const char *name, char *out, size_t room) {
    bool found = false;
    if (out[0] != '\0') {
        return LT_OK;
    }
    if (lt_ini_get(f->text, f->section, name, out, room, &found) != LT_OK) {
        return lt_error_prefix(LT_ERR_FORMAT, "%s", f->path);
    }
    return LT_OK;
}

/* A value of the first variable that is set, if `out` has none yet. */
static lt_err take_variable(char *out, size_t room, const char *first, const char *second) {
    const char *const variables[] = {first, second};
    for (int i = 0; i < 2 && out[0] == '\0'; i++) {
        const char *value = variables[i] != NULL ? getenv(variables[i]) : NULL;
        if (value != NULL && snprintf(out, room, "%s", value) >= (int)room) {
            out[0] = '\0';
            LT_FAIL(LT_ERR_LIMIT, "%s has %zu bytes; at most %zu", variables[i], strlen(value),
                    room - 1);
        }
    }
    return LT_OK;
}

static lt_err take_keys(lt_aws_config *c, const ini *f) {
    LT_TRY(take(f, "aws_access_key_id", c->access, sizeof c->access));
    if (c->access[0] != '\0') {
        LT_TRY(take(f, "aws_secret_access_key", c->secret, sizeof c->secret));
        LT_TRY(take(f, "aws_session_token", c->token, sizeof c->token));
    }
    return LT_OK;
}

/* A profile whose keys are made by something else. */
static lt_err refuse_others(const ini *f, const char *profile) {
    static const char *const ways[] = {"credential_process", "sso_session", "sso_start_url",
                                       "role_arn", "web_identity_token_file"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char value[1024] = "";
        LT_TRY(take(f, ways[i], value, sizeof value));
        if (value[0] != '\0') {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: profile '%s' gets its keys by '%s', which is not supported; `aws "
                    "configure export-credentials --profile %s --format env` prints them as "
                    "variables to set",
                    f->path, profile, ways[i], profile);
        }
    }
    return LT_OK;
}

static lt_err read_keys(lt_aws_config *c, const lt_aws_wanted *w, const char *profile,
                        const ini *credentials, const ini *config) {
    if (w->profile[0] == '\0') {
        LT_TRY(take_variable(c->access, sizeof c->access, "AWS_ACCESS_KEY_ID", NULL));
    }
    if (c->access[0] != '\0') {
        LT_TRY(take_variable(c->secret, sizeof c->secret, "AWS_SECRET_ACCESS_KEY", NULL));
        LT_TRY(take_variable(c->token, sizeof c->token, "AWS_SESSION_TOKEN", NULL));
    } else {
        LT_TRY(take_keys(c, credentials));
        LT_TRY(take_keys(c, config));
    }
    if (c->access[0] == '\0') {
        LT_TRY(refuse_others(config, profile));
        LT_TRY(refuse_others(credentials, profile));
        LT_FAIL(LT_ERR_NOT_FOUND,
                "no keys for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write profile "
                "'%s' into %s; --anonymous reads public buckets without keys",
                profile, credentials->path);
    }
    if (c->secret[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "an access key for S3 without its secret (AWS_SECRET_ACCESS_KEY, or "
                            "aws_secret_access_key of the profile)");
    }
    return LT_OK;
}

static lt_err read_place(lt_aws_config *c, ini *config) {
    char services[200] = "";
    LT_TRY(take_variable(c->region, sizeof c->region, "AWS_REGION", "AWS_DEFAULT_REGION"));
    LT_TRY(take(config, "region", c->region, sizeof c->region));
    if (c->region[0] == '\0') {
        (void)snprintf(c->region, sizeof c->region, "us-east-1");
    }
    LT_TRY(
        take_variable(c->endpoint, sizeof c->endpoint, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"));
    LT_TRY(take(config, "services", services, sizeof services));
    if (services[0] != '\0' && c->endpoint[0] == '\0') {
        ini s = *config;
        (void)snprintf(s.section, sizeof s.section, "services %s", services);
        LT_TRY(take(&s, "s3.endpoint_url", c->endpoint, sizeof c->endpoint));
    }
    return take(config, "endpoint_url", c->endpoint, sizeof c->endpoint);
}

lt_err lt_aws_config_read(lt_aws_config *out, const lt_aws_wanted *w) {
    lt_err err = LT_OK;
    lt_aws_config c = {.anonymous = w->anonymous};
    char profile[200] = "";
    ini credentials = {0}, config = {0};

    if (snprintf(profile, sizeof profile, "%s", w->profile) >= (int)sizeof profile ||
        snprintf(c.region, sizeof c.region, "%s", w->region) >= (int)sizeof c.region ||
        snprintf(c.endpoint, sizeof c.endpoint, "%s", w->endpoint) >= (int)sizeof c.endpoint) {
        LT_FAIL(LT_ERR_LIMIT, "the profile, region or endpoint for S3 is too long");
    }
    LT_TRY_DONE(take_variable(profile, sizeof profile, "AWS_PROFILE", NULL));
    if (profile[0] == '\0') {
        (void)snprintf(profile, sizeof profile, "default");
    }
    LT_TRY_DONE(ini_open(&credentials, "AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"));
    LT_TRY_DONE(ini_open(&config, "AWS_CONFIG_FILE", ".aws/config"));
    (void)snprintf(credentials.section, sizeof credentials.section, "%s", profile);
    (void)snprintf(config.section, sizeof config.section, "%s%s",
                   strcmp(profile, "default") == 0 ? "" : "profile ", profile);
    if (!w->anonymous) {
        LT_TRY_DONE(read_keys(&c, w, profile, &credentials, &config));
    }
    LT_TRY_DONE(read_place(&c, &config));
    *out = c;
done:
    lt_aws_config_wipe(&c);
    ini_close(&credentials);
    ini_close(&config);
    return err;
}

void lt_aws_config_wipe(lt_aws_config *c) {
    OPENSSL_cleanse(c, sizeof *c);
}
