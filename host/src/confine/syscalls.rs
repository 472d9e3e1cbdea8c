//! seccomp: system calls that a host never needs once its sockets are open, and that code which took it
//! over would like to have.
//!
//! A list of what is refused and not of what is allowed: the C library, ONNX Runtime and tokio change what
//! they call from version to version, and a device must not lose its models to an update. What is refused
//! gives an error and ends nobody. Calls younger than [`NEWEST`] do not exist, so that what the list does
//! not know is not there either.
#![allow(unsafe_code)]

use std::io::Error;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGT, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, EACCES, ENOSYS,
    EPERM, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS, c_long, sock_filter,
};

/// The youngest system call that is looked at one by one: `mseal`, of Linux 6.10.
const NEWEST: c_long = libc::SYS_mseal;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// `setpriority` for one process, or one thread: its type is not the same everywhere.
const PRIO_PROCESS: u32 = 0;

/// Never needed, whatever the arguments are.
const REFUSED: &[c_long] = &[
    // Other programs, and other processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kcmp,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_tkill,
    // Ways round every check of a path or a call.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    libc::SYS_userfaultfd,
    libc::SYS_memfd_secret,
    libc::SYS_personality,
    // Mounts, namespaces, roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    // The kernel and the machine.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_modify_ldt,
    // Who this is.
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    // What Landlock does not know of files.
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    // `fchmodat2`, which the C library's bindings do not name everywhere.
    452,
];

/// Offsets in `seccomp_data`, of the lower halves of the arguments.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGUMENTS: [u32; 3] = [16, 24, 32];

const fn instruction(code: u32, k: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code: code as u16, jt: yes, jf: no, k }
}

fn load(offset: u32) -> sock_filter {
    instruction(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0)
}

fn end(with: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, with, 0, 0)
}

fn errno(error: i32) -> sock_filter {
    end(SECCOMP_RET_ERRNO | error as u32)
}

/// Goes on with the next instruction where the loaded number is `value`, and skips `count` otherwise.
fn unless_equal_skip(value: u32, count: u8) -> sock_filter {
    instruction(BPF_JMP | BPF_JEQ | BPF_K, value, 0, count)
}

/// What an argument has to be: which one, and its value under a mask.
type Wanted = (usize, u32, u32);

/// One system call whose arguments have to be what is wanted, or `error`.
fn only_with(call: c_long, wanted: &[Wanted], error: i32) -> Vec<sock_filter> {
    // Four instructions for each argument, and one at the end.
    let mut program = vec![unless_equal_skip(call as u32, 4 * wanted.len() as u8 + 1)];
    for &(argument, mask, value) in wanted {
        program.extend([
            load(ARGUMENTS[argument]),
            instruction(BPF_ALU | BPF_AND | BPF_K, mask, 0, 0),
            instruction(BPF_JMP | BPF_JEQ | BPF_K, value, 1, 0),
            errno(error),
        ]);
    }
    program.push(end(SECCOMP_RET_ALLOW));
    program
}

/// The program; `own` is this process's number.
fn program(own: u32) -> Vec<sock_filter> {
    let mut program = vec![
        load(ARCH),
        // Another architecture's numbers mean other calls.
        instruction(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0),
        end(SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
        // Younger ones, and those of x32, which lie above all others.
        instruction(BPF_JMP | BPF_JGT | BPF_K, NEWEST as u32, 0, 1),
        errno(ENOSYS),
        // Its flags lie in memory, where no filter can look: the C library takes `clone` instead.
        unless_equal_skip(libc::SYS_clone3 as u32, 1),
        errno(ENOSYS),
    ];
    for &call in REFUSED {
        program.extend([unless_equal_skip(call as u32, 1), errno(EPERM)]);
    }
    let thread = libc::CLONE_THREAD as u32;
    let all = u32::MAX;
    for call in [
        only_with(libc::SYS_clone, &[(0, thread, thread)], EPERM),
        only_with(libc::SYS_socket, &[(0, all, libc::AF_UNIX as u32)], EACCES),
        only_with(libc::SYS_kill, &[(0, all, own)], EPERM),
        only_with(libc::SYS_tgkill, &[(0, all, own)], EPERM),
        // A thread may give way itself: not have others do so, nor go before what is not of this process.
        only_with(libc::SYS_setpriority, &[(0, all, PRIO_PROCESS), (1, all, 0), (2, !31, 0)], EPERM),
    ] {
        program.extend(call);
    }
    // Typing into the terminal that it was started from.
    program.extend([
        unless_equal_skip(libc::SYS_ioctl as u32, 3),
        load(ARGUMENTS[1]),
        unless_equal_skip(libc::TIOCSTI as u32, 1),
        errno(EPERM),
    ]);
    program.push(end(SECCOMP_RET_ALLOW));
    program
}

/// Installs the filter for every thread of the process.
pub fn filter() -> Result<(), Error> {
    let mut program = program(std::process::id());
    let length = u16::try_from(program.len()).map_err(|_| Error::from(std::io::ErrorKind::InvalidInput))?;
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: sets one flag of this process; the other arguments have to be zero.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the program is as long as it says, lives until the call is over and is only read by it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    match result {
        0 => Ok(()),
        -1 => Err(Error::last_os_error()),
        // The number of a thread that has a filter of its own.
        _ => Err(Error::other("a thread has another filter already")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter says to a call: an interpreter for the few instructions that it uses.
    fn judge(architecture: u32, call: c_long, arguments: [u32; 3]) -> u32 {
        let program = program(77);
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            let code = u32::from(step.code);
            let jump = |yes: bool| usize::from(if yes { step.jt } else { step.jf });
            match code {
                _ if code == BPF_LD | BPF_W | BPF_ABS => {
                    loaded = match step.k {
                        NUMBER => call as u32,
                        ARCH => architecture,
                        offset => arguments[ARGUMENTS.iter().position(|&it| it == offset).unwrap()],
                    }
                }
                _ if code == BPF_ALU | BPF_AND | BPF_K => loaded &= step.k,
                _ if code == BPF_JMP | BPF_JEQ | BPF_K => at += jump(loaded == step.k),
                _ if code == BPF_JMP | BPF_JGT | BPF_K => at += jump(loaded > step.k),
                _ if code == BPF_RET | BPF_K => return step.k,
                _ => panic!("{code}"),
            }
        }
    }

    #[test]
    fn the_filter_knows_calls_and_arguments() {
        let refused = |error: i32| SECCOMP_RET_ERRNO | error as u32;
        let check = |call, arguments, expected| {
            assert_eq!(judge(ARCHITECTURE, call, arguments), expected, "{call} {arguments:?}");
        };
        for call in [libc::SYS_read, libc::SYS_openat, libc::SYS_mmap, libc::SYS_futex, libc::SYS_accept4] {
            check(call, [0; 3], SECCOMP_RET_ALLOW);
        }
        for &call in REFUSED {
            check(call, [0; 3], refused(EPERM));
        }
        check(libc::SYS_clone3, [0; 3], refused(ENOSYS));
        check(NEWEST, [0; 3], SECCOMP_RET_ALLOW);
        check(NEWEST + 1, [0; 3], refused(ENOSYS));
        check(libc::SYS_execve | 0x4000_0000, [0; 3], refused(ENOSYS));
        let thread = (libc::CLONE_THREAD | libc::CLONE_VM) as u32;
        check(libc::SYS_clone, [thread, 0, 0], SECCOMP_RET_ALLOW);
        check(libc::SYS_clone, [libc::SIGCHLD as u32, 0, 0], refused(EPERM));
        check(libc::SYS_socket, [libc::AF_UNIX as u32, 1, 0], SECCOMP_RET_ALLOW);
        for domain in [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, 40] {
            check(libc::SYS_socket, [domain as u32, 1, 0], refused(EACCES));
        }
        check(libc::SYS_kill, [77, 9, 0], SECCOMP_RET_ALLOW);
        check(libc::SYS_kill, [78, 9, 0], refused(EPERM));
        check(libc::SYS_tgkill, [78, 1, 9], refused(EPERM));
        for nice in [0, 5, 19] {
            check(libc::SYS_setpriority, [PRIO_PROCESS, 0, nice], SECCOMP_RET_ALLOW);
        }
        check(libc::SYS_setpriority, [PRIO_PROCESS, 0, (-1_i32) as u32], refused(EPERM));
        check(libc::SYS_setpriority, [PRIO_PROCESS, 78, 19], refused(EPERM));
        check(libc::SYS_setpriority, [1, 0, 19], refused(EPERM));
        check(libc::SYS_ioctl, [0, libc::TIOCSTI as u32, 0], refused(EPERM));
        check(libc::SYS_ioctl, [0, libc::FIONREAD as u32, 0], SECCOMP_RET_ALLOW);
        assert_eq!(judge(0x4000_0003, libc::SYS_read, [0; 3]), SECCOMP_RET_KILL_PROCESS);
    }
}
