//! A call, one message and its answer.

use super::*;

#[tokio::test]
async fn the_server_and_its_models_are_told_as_rest_tells_them() {
    let server = Server::echoing().await;
    let none = Message::default();
    assert_eq!(server.call("ServerLive", &none).await.message(), [8, 1]);
    assert_eq!(server.call("ServerReady", &none).await.message(), [8, 1]);
    let told = server.call("ServerMetadata", &none).await;
    assert_eq!(fields(told.message(), 1), [Value::Bytes(b"selvedge-host")]);
    for (name, version, ready) in
        [("numbers", "", 1), ("numbers", "7", 1), ("numbers", "9", 0), ("nobody", "", 0)]
    {
        let told = server.call("ModelReady", &named(name, version)).await;
        assert_eq!(fields(told.message(), 1).len(), ready, "{name} {version}");
    }
    let told = server.call("ModelMetadata", &named("half", "1.0.0")).await;
    assert_eq!(fields(told.message(), 2), [Value::Bytes(b"1.0.0")]);
    let inputs = fields(told.message(), 4);
    assert_eq!(fields(inputs[0].bytes().unwrap(), 2), [Value::Bytes(b"FP16")]);
    let told = server.call("ModelConfig", &named("half", "")).await;
    let config = fields(told.message(), 1)[0].bytes().unwrap();
    assert_eq!(fields(fields(config, 5)[0].bytes().unwrap(), 2), [Value::Number(10)], "TYPE_FP16");
    assert_eq!(server.call("/grpc.health.v1.Health/Check", &none).await.message(), [8, 1]);
    server.call("/grpc.health.v1.Health/Check", &named("x", "")).await.refused(5, "no such service");
    server.call("ModelMetadata", &named("nobody", "")).await.refused(5, "no model `nobody`");
    server.call("ModelMetadata", &named("half", "9")).await.refused(5, "not its version `9`");
    for (method, says) in [
        ("SystemSharedMemoryStatus", "shared memory is not offered"),
        ("CudaSharedMemoryRegister", "shared memory is not offered"),
        ("RepositoryIndex", "control socket"),
        ("TraceSetting", "SELVEDGE_LOG"),
        ("Nothing", "nothing at this path"),
        ("/other.Service/Call", "nothing at this path"),
        ("/grpc.health.v1.Health/Watch", "nothing at this path"),
    ] {
        server.call(method, &none).await.refused(12, says);
    }
}

#[tokio::test]
async fn elements_go_both_ways_as_bytes_and_as_numbers() {
    let server = Server::echoing().await;
    let elements = [0, 0, 0x80, 0x3f, 0, 0, 0xc0, 0x7f];
    let answer = server.call("ModelInfer", &raw("numbers", "FP32", 2, &elements)).await;
    let message = answer.message();
    assert_eq!(fields(message, 1), [Value::Bytes(b"numbers")]);
    assert_eq!(fields(message, 3), [Value::Bytes(b"seven")]);
    assert_eq!(fields(message, 6), [Value::Bytes(&elements)]);
    let text = b"\x02\0\0\0\xff\0\0\0\0\0";
    let answer = server.call("ModelInfer", &raw("text", "BYTES", 2, text)).await;
    assert_eq!(fields(answer.message(), 6), [Value::Bytes(text)]);
    let mut typed = Message::default();
    typed.bytes(1, "text").message(5, |input| {
        input.bytes(1, "x").bytes(2, "BYTES").packed(3, [2].into_iter()).message(5, |it| {
            it.part(8, "a").part(8, "");
        });
    });
    let answer = server.call("ModelInfer", &typed).await;
    assert!(fields(answer.message(), 6).is_empty());
    let output = fields(answer.message(), 5)[0].bytes().unwrap();
    let contents = fields(output, 5)[0].bytes().unwrap();
    assert_eq!(fields(contents, 8), [Value::Bytes(b"a"), Value::Bytes(b"")]);
    // A message in many frames, larger than the window of a connection.
    let large: Vec<u8> = (0..900_000_u32).map(|at| at as u8).collect();
    let answer = server.call("ModelInfer", &raw("half", "FP16", 450_000, &large)).await;
    assert_eq!(fields(answer.message(), 6), [Value::Bytes(&large)]);
    let counts = server.serving.find("half", None).unwrap().counts.snapshot();
    assert_eq!((counts.success, counts.failures), (1, [0; 4]));
    let one = server.call("ModelStatistics", &named("half", "")).await;
    let statistics = fields(one.message(), 1)[0].bytes().unwrap();
    assert_eq!(fields(statistics, 4), [Value::Number(1)], "inferences");
    let success = fields(fields(statistics, 6)[0].bytes().unwrap(), 1)[0].bytes().unwrap();
    assert_eq!(fields(success, 1), [Value::Number(1)]);
    let all = server.call("ModelStatistics", &Message::default()).await;
    assert_eq!(fields(all.message(), 1).len(), 3);
}

#[tokio::test]
async fn wrong_calls_are_refused_in_words() {
    let server = Server::echoing().await;
    let good = raw("numbers", "FP32", 1, &[0; 4]);
    server.call("ModelInfer", &raw("nobody", "FP32", 1, &[0; 4])).await.refused(5, "no model `nobody`");
    server.call("ModelInfer", &raw("numbers", "FP64", 1, &[0; 8])).await.refused(3, "has to be FP32");
    server
        .call("ModelInfer", &raw("numbers", "FP32", 1, &[0; 5]))
        .await
        .refused(3, "takes 4 bytes, and 5 came");
    server
        .call("ModelInfer", &raw("numbers", "FP32", 1 << 40, &[]))
        .await
        .refused(3, "larger than the package's");
    let most = (3 << 20) / 4;
    server
        .call("ModelInfer", &raw("numbers", "FP32", most, &vec![0; 3 << 20]))
        .await
        .refused(8, "larger than");
    let client = &mut server.connect().await;
    let infer = async |client: &mut _, headers: &[(&'static str, &str)]| {
        call(client, "ModelInfer", headers, vec![good.as_ref()]).await
    };
    infer(client, &[("grpc-timeout", "1x")]).await.refused(3, "grpc-timeout");
    infer(client, &[("grpc-encoding", "br")]).await.refused(12, "gzip, deflate or identity");
    infer(client, &[("grpc-timeout", "60S"), ("content-type", "application/grpc+proto")]).await.message();
    call(client, "ModelInfer", &[], vec![]).await.refused(12, "no message");
    call(client, "ModelInfer", &[], vec![good.as_ref(), good.as_ref()]).await.refused(12, "one message");
    call(client, "ModelInfer", &[], vec![b"\x0b"]).await.refused(3, "the message is refused");
    let json = request("ModelInfer", &[("content-type", "application/json")], Full::from("{}").boxed());
    assert_eq!(client.send_request(json).await.unwrap().status(), 415);
    // REST is on the same connection.
    let rest = Request::get("http://localhost/v2/health/live").body(Full::default().boxed()).unwrap();
    let answer = client.send_request(rest).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert_eq!(answer, r#"{"live":true}"#);
    server.serving.drain();
    server.call("ModelInfer", &good).await.refused(14, "ending");
}

#[tokio::test]
async fn a_long_message_is_read_at_its_turn_and_what_is_not_read_needs_none() {
    let server = Server::echoing().await;
    let model = server.serving.find("numbers", None).unwrap();
    let together = crate::serve::reserve::serving_threads().max(model.manifest().module.concurrency as usize);
    let mut leaves = Vec::new();
    for _ in 0..together {
        leaves.push(model.gate.ready(crate::clock::now() + LONG).await.unwrap());
    }
    let typed = |count: usize| {
        let mut message = Message::default();
        message.bytes(1, "numbers").message(5, |input| {
            input.bytes(1, "x").bytes(2, "FP32").packed(3, [count as u64].into_iter());
            input.message(5, |it| it.append(|bytes| bytes.extend([0x35, 0, 0, 0x80, 0x3f].repeat(count))));
        });
        message
    };
    let (long, short) = (typed(220_000), typed(200_000));
    assert!(short.as_ref().len() < 1 << 20 && long.as_ref().len() > 1 << 20);
    let client = &mut server.connect().await;
    let waiting = call(client, "ModelInfer", &[("grpc-timeout", "50m")], vec![long.as_ref()]).await;
    waiting.refused(4, "no turn within");
    server.call("ModelInfer", &short).await.message();
    server.call("ModelInfer", &raw("numbers", "FP32", 1 << 18, &[0; 1 << 20])).await.message();
    drop(leaves);
    let answer = server.call("ModelInfer", &long).await;
    let output = fields(answer.message(), 5)[0].bytes().unwrap();
    let contents = fields(fields(output, 5)[0].bytes().unwrap(), 6)[0].bytes().unwrap();
    assert!(contents == 1_f32.to_le_bytes().repeat(220_000));
}

#[tokio::test]
async fn a_clients_time_holds_and_one_who_leaves_is_counted() {
    let server = Server::start(Limits { connections: 8, head: LONG, answer: LONG }).await;
    let permits = Arc::new(Semaphore::new(0));
    server.put("slow", "FP32", Behaviour::Wait(Arc::clone(&permits)));
    let message = raw("slow", "FP32", 1, &[0; 4]);
    let client = &mut server.connect().await;
    let ended = call(client, "ModelInfer", &[("grpc-timeout", "20m")], vec![message.as_ref()]).await;
    assert_eq!(ended.status, 4, "{ended:?}");
    let mut other = server.connect().await;
    // Found in the table, it is not held.
    let served = server.serving.table.all().remove(0);
    served.idle().await;
    let runs = async {
        while served.is_idle() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        ended = call(&mut other, "ModelInfer", &[], vec![message.as_ref()]) => panic!("{ended:?}"),
        () = runs => {}
    }
    let canceled = || server.serving.find("slow", None).unwrap().counts.snapshot().failures[1];
    let noticed = async {
        while canceled() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, noticed).await.expect("its leaving is noticed");
}
