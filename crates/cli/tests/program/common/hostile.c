/* A program of another user's that is called like a server, and, compiled with -DLIBRARY, a library that is loaded into others.
   Each start writes into RECORD as whom it runs: uid, euid, permitted and effective capabilities, user namespace, what it is.
   The file belongs to whoever wrote it, whatever it says. With SERVE it serves HTTP; asked, it says what any server might. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void record(const char *what, const char *word) {
    char name[] = RECORD "/XXXXXX", line[256], space[64] = "", permitted[32] = "?", effective[32] = "?";
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) {
        sscanf(line, "CapPrm: %31s", permitted);
        sscanf(line, "CapEff: %31s", effective);
    }
    if (status) fclose(status);
    if (readlink("/proc/self/ns/user", space, sizeof space - 1) < 0) space[0] = '?';
    int file = mkstemp(name);
    if (file < 0) return;
    dprintf(file, "%d %d %s %s %s %s %s", getuid(), geteuid(), permitted, effective, space, what, word);
    close(file);
}

#ifdef LIBRARY
__attribute__((constructor)) static void loaded(void) { record("library", program_invocation_name); }
/* As Apache knows a module by. */
struct { int version, minor, index; const char *name; void *handle, *next; unsigned long magic; void *rest[12]; } x_module = {
    20120211, 0, -1, "hostile.c", 0, 0, 0x41503234UL};
void gconv_init(void) {}
void gconv(void) {}
#else
static void serve(int port) {
    int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(0x7f000001)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    /* Asked, while another serves there. */
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 64)) return;
    for (;;) {
        static char bytes[65536];
        int client = accept(listener, 0, 0);
        if (client < 0) continue;
        if (fork()) {
            close(client);
            continue;
        }
        long n = read(client, bytes, sizeof bytes - 1);
        int mischief = !access("mischief", F_OK);
        if (mischief && n > 0 && strstr(bytes, "/server-status")) {
            /* Ten gigabytes. */
            dprintf(client, "HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n");
            memset(bytes, 'A', sizeof bytes);
            while (write(client, bytes, sizeof bytes) > 0) {}
        } else if (mischief && n > 0 && strstr(bytes, "_status")) {
            /* Drop by drip. */
            dprintf(client, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
            while (write(client, "A", 1) > 0) usleep(100000);
        } else {
            dprintf(client, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
        _exit(0);
    }
}

int main(int argc, char **argv) {
    for (int i = 0; i < 4; i++) signal((int[]){SIGCHLD, SIGHUP, SIGUSR1, SIGUSR2}[i], SIG_IGN);
    record("program", argc > 1 ? argv[1] : argv[0]);
    if (getenv("SERVE") && argc < 8) serve(atoi(getenv("SERVE")));
    for (int to = 1; to <= 2; to++)
        dprintf(to, "Server version: Apache/2.4.62\nServer MPM:     prefork\n -D HTTPD_ROOT=\"/\"\n"
                    "nginx version: nginx/1.22.1\nconfigure arguments: --prefix=/ --conf-path=/nginx.conf\n"
                    "HAProxy version 2.6.12\nPHP 8.2.1 (fpm-fcgi)\nworkers = 3\nprocesses = 3\n");
    return 0;
}
#endif
