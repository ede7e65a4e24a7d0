/* What the simulated MPS programs and libcuda say to each other, over the socket `control` in the
 * folder of pipes: it takes a line and answers. A client's connection is handed on to the server,
 * and stays open. */
#ifndef FAKEGPU_MPS_H
#define FAKEGPU_MPS_H

#include <stdbool.h>
#include <stddef.h>

#define FG_MPS_VARIABLE "CUDA_MPS_PIPE_DIRECTORY"
#define FG_MPS_DEFAULT "/tmp/nvidia-mps"
#define FG_MPS_CLIENT "client"
#define FG_MPS_FAULT "fault"
#define FG_MPS_OK "ok"
#define FG_MPS_BUSY "not ready"

enum { FG_MPS_LINE = 512, FG_MPS_SERVER_MIB = 66 };

/* A socket of the folder that CUDA_MPS_PIPE_DIRECTORY names; -1: nobody listens there. */
int fg_mps_connect(const char *name);

/* The same, to listen at; what lay there is replaced. */
int fg_mps_listen(const char *name);

/* Hands a descriptor over to another process, and takes one; -1: the other side has gone. */
bool fg_mps_hand(int channel, int fd);
int fg_mps_take(int channel);

/* A line, without its end; false when the other side has gone. */
bool fg_mps_read(int fd, char line[FG_MPS_LINE]);
bool fg_mps_write(int fd, const char *line);

#endif
