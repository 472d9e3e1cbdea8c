;; Loops for ever in the start function of its core module, which runs while it is instantiated.
(component
  (core module $start
    (func $start (loop $again (br $again)))
    (start $start)
    (func (export "predict")))
  (core instance $instance (instantiate $start))
  (func $predict (canon lift (core func $instance "predict")))
  (instance $predictor (export "predict" (func $predict)))
  (export "selvedge:model/predictor@0.1.0" (instance $predictor)))
