//! One transfer by itself: a plan and the pace that it would share with others.
#![allow(dead_code)]

use std::ops::Deref;
use std::time::Duration;

use selvedge_protocol::block::{Event, Pace, Plan};
use selvedge_protocol::message::Need;

/// A plan with a pace of its own.
pub struct Alone {
    plan: Plan,
    pace: Pace,
}

impl Alone {
    pub fn new(plan: Plan) -> Self {
        Self { plan, pace: Pace::new() }
    }

    pub fn step(&mut self, at: Duration, event: Event) {
        if event == Event::Connected {
            self.pace.reconnected();
        }
        self.plan.step(at, event, &mut self.pace);
    }

    pub fn ask(&mut self, at: Duration, blocks: u32) -> Option<Need> {
        self.plan.ask(at, blocks, &mut self.pace)
    }

    pub fn wake_at(&self) -> Option<Duration> {
        self.plan.wake_at(&self.pace, false)
    }
}

impl Deref for Alone {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}
