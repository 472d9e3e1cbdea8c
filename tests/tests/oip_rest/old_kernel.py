"""`old_kernel.py PROGRAM ARGUMENT…`: runs the program as a kernel without Landlock and seccomp would."""

import ctypes
import errno
import os
import platform
import struct
import sys

LANDLOCK = 444
SECCOMP, PRCTL = {"x86_64": (317, 157), "aarch64": (277, 167)}[platform.machine()]
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # of a classic BPF program
NUMBER, ARGUMENT = 0, 16  # in `struct seccomp_data`
ALLOW, REFUSE = 0x7FFF0000, 0x00050000

program = [
    (LOAD, 0, 0, NUMBER),
    (EQUAL, 4, 0, LANDLOCK),
    (EQUAL, 3, 0, SECCOMP),
    (EQUAL, 0, 3, PRCTL),
    (LOAD, 0, 0, ARGUMENT),
    (EQUAL, 2, 1, PR_SET_SECCOMP),
    (RETURN, 0, 0, REFUSE | errno.ENOSYS),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, REFUSE | errno.EINVAL),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
of = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
for call in [(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, MODE_FILTER, ctypes.addressof(of), 0, 0)]:
    if libc.prctl(call[0], *map(ctypes.c_ulong, call[1:])) != 0:
        sys.exit(f"prctl{call}: {os.strerror(ctypes.get_errno())}")
os.execv(sys.argv[1], sys.argv[1:])
