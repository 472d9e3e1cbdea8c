//! Calls with more than one message.

use super::*;

/// A call whose messages are sent one by one.
async fn streaming(client: &mut SendRequest<Body>) -> (mpsc::Sender<Bytes>, hyper::body::Incoming) {
    let (send, receive) = mpsc::channel::<Bytes>(1);
    let frames = stream::unfold(receive, |mut receive| async move {
        let frame = receive.recv().await?;
        Some((Ok(Frame::data(frame)), receive))
    });
    let body = BodyExt::boxed(StreamBody::new(frames));
    let answer = client.send_request(request("ModelStreamInfer", &[], body)).await.unwrap();
    (send, answer.into_body())
}

async fn next(answers: &mut hyper::body::Incoming) -> Result<Vec<u8>, HeaderMap> {
    let mut whole = Vec::new();
    loop {
        let frame = tokio::time::timeout(LONG, answers.frame()).await.unwrap().unwrap().unwrap();
        match frame.into_data() {
            Ok(data) => whole.extend_from_slice(&data),
            Err(trailers) => return Err(trailers.into_trailers().unwrap()),
        }
        if whole.len() >= 5 && whole.len() == 5 + u32::from_be_bytes(whole[1..5].try_into().unwrap()) as usize
        {
            return Ok(whole.split_off(5));
        }
    }
}

#[tokio::test]
async fn a_stream_answers_each_message_and_goes_on_after_a_wrong_one() {
    let server = Server::echoing().await;
    let (send, mut answers) = streaming(&mut server.connect().await).await;
    for count in [1_u64, 0, 3] {
        let wrong = count == 0;
        let mut message =
            raw(if wrong { "nobody" } else { "numbers" }, "FP32", count, &vec![7; 4 * count as usize]);
        message.message(4, |entry| {
            entry.bytes(1, "triton_enable_empty_final_response").message(2, |it| it.chosen_number(1, 1));
        });
        let whole = framed(vec![message.into_bytes().into()]).unwrap().concat();
        let (first, second) = whole.split_at(whole.len() / 2);
        send.send(Bytes::copy_from_slice(first)).await.unwrap();
        send.send(Bytes::copy_from_slice(second)).await.unwrap();
        let answer = next(&mut answers).await.unwrap();
        let inner = fields(&answer, 2)[0].bytes().unwrap();
        assert_eq!(fields(inner, 3), [Value::Bytes(b"seven")]);
        if wrong {
            assert!(fields(&answer, 1)[0].text(1000).unwrap().contains("no model `nobody`"));
        } else {
            assert_eq!(fields(inner, 6)[0].bytes().unwrap().len(), 4 * count as usize);
            let last = fields(inner, 4)
                .into_iter()
                .any(|entry| fields(entry.bytes().unwrap(), 1)[0] == Value::Bytes(b"triton_final_response"));
            assert!(last);
        }
    }
    drop(send);
    assert_eq!(next(&mut answers).await.unwrap_err()["grpc-status"], "0");
    // What is no message ends the stream.
    let (send, mut answers) = streaming(&mut server.connect().await).await;
    send.send(Bytes::from_static(b"\0\xff\xff\xff\xff")).await.unwrap();
    assert_eq!(next(&mut answers).await.unwrap_err()["grpc-status"], "8");
}

#[tokio::test]
async fn the_end_of_the_server_ends_a_stream_that_waits() {
    let server = Server::echoing().await;
    let (_send, mut answers) = streaming(&mut server.connect().await).await;
    let _idle = server.connect().await;
    tokio::task::yield_now().await;
    server.serving.drain();
    server.stop.send_replace(true);
    assert_eq!(next(&mut answers).await.unwrap_err()["grpc-status"], "14");
    tokio::time::timeout(LONG, server.ended).await.expect("it waits for nobody").unwrap();
}
