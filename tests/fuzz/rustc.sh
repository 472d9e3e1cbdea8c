#!/bin/sh
# Runs the compiler for `.cargo/config.toml`. What the fuzzer does not steer by gets no coverage: engines
# that compile modules, which no target runs, and what schedules tasks and moves bytes, which covers something
# else each time. They are built quickly and without checks of their own; they are most of what there is to build.
#
# Called by cargo: the compiler, then its arguments.
name=
previous=
for argument do
    case $previous in
        --crate-name) name=$argument ;;
    esac
    previous=$argument
done
case $name in
    cranelift*|wasmtime*|wasmparser|wasm_encoder|wasmprinter|regalloc2|pulley*|gimli|object|addr2line|cap_*|ort|ort_sys) ;;
    tokio*|axum*|matchit|hyper*|http|http_body*|h2|tower*|futures*|tracing*|clap*|rustix|libloading|landlock) ;;
    *) exec "$@" ;;
esac
for argument do
    shift
    case $argument in
        -Cpasses=sancov-module) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "$@" -Copt-level=1 -Ccodegen-units=16 -Cdebuginfo=0 -Cdebug-assertions=no -Coverflow-checks=no
