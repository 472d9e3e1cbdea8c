;; Asks for the network by another name than sockets.
(component
  (import "wasi:http/outgoing-handler@0.2.0" (instance (export "handle" (func))))
  (core module $nothing (func (export "predict")))
  (core instance $instance (instantiate $nothing))
  (func $predict (canon lift (core func $instance "predict")))
  (instance $predictor (export "predict" (func $predict)))
  (export "selvedge:model/predictor@0.1.0" (instance $predictor)))
