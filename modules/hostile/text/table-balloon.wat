;; Grows a table for ever while it is instantiated. Compilers make no such code, so it is written by hand.
(component
  (core module $balloon
    (table $table 1 funcref)
    (func $start
      (loop $again
        (if (i32.eq (table.grow $table (ref.null func) (i32.const 1000)) (i32.const -1))
          (then unreachable))
        (br $again)))
    (start $start)
    (func (export "predict")))
  (core instance $instance (instantiate $balloon))
  (func $predict (canon lift (core func $instance "predict")))
  (instance $predictor (export "predict" (func $predict)))
  (export "selvedge:model/predictor@0.1.0" (instance $predictor)))
