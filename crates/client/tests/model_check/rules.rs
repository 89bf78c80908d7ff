//! What must hold in every state, and what must be seen in some.

use stateright::{Model, Property};

use crate::setup::Setup;
use crate::state::{Action, State};

pub(crate) const ONE_HOLDER: &str = "one holder";
pub(crate) const UNIQUE: &str = "tokens are unique";
pub(crate) const RISE: &str = "tokens rise";
pub(crate) const STAYS_BROKEN: &str = "what was broken is not prolonged";

pub(crate) const BOTH: &str = "one got it after the other";
pub(crate) const CONFIRMS: &str = "a token is raised";
pub(crate) const PROLONGS: &str = "a renewal makes it last longer";
pub(crate) const QUEUES: &str = "somebody waits at a node";

/// All that can come of a setup.
pub(crate) struct World(pub(crate) Setup);

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.0)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        state.actions(&self.0, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        Some(state.after(&self.0, action))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut rules = vec![
            Property::always(UNIQUE, |_, state| tokens_are_unique(state)),
            Property::always(RISE, |_, state| tokens_rise(state)),
            Property::sometimes(BOTH, |_, state: &State| state.clients.iter().any(|it| it.came_after())),
            Property::sometimes(CONFIRMS, |_, state: &State| state.confirms()),
            Property::sometimes(PROLONGS, prolongs),
            Property::sometimes(QUEUES, |_, state: &State| {
                state.nodes.iter().any(|node| !node.waiting.is_empty())
            }),
        ];
        if self.0.leases_last() {
            rules.push(Property::always(ONE_HOLDER, one_holder));
        }
        if self.0.chances.breaks_all > 0 {
            rules.push(Property::always(STAYS_BROKEN, stays_broken));
        }
        rules
    }
}

/// At most one client takes the lock as held.
fn one_holder(world: &World, state: &State) -> bool {
    !(state.holds(&world.0, 0) && state.holds(&world.0, 1))
}

fn prolongs(world: &World, state: &State) -> bool {
    (0..2).any(|client| state.clients[client].is_prolonged(state.client_now(&world.0, client)))
}

/// The tokens of two confirmed grants differ.
fn tokens_are_unique(state: &State) -> bool {
    let [one, other] = [0, 1].map(|client| state.clients[client].granted);
    one.is_none() || one.map(|granted| granted.token) != other.map(|granted| granted.token)
}

/// A grant whose round began after another was confirmed has the higher token.
fn tokens_rise(state: &State) -> bool {
    state.clients.iter().filter_map(|client| client.granted).all(|granted| granted.token > granted.above)
}

/// Nobody holds it longer than what was sent before the break can make it last.
fn stays_broken(world: &World, state: &State) -> bool {
    (0..2).all(|client| {
        let until = state.clients[client].holds_until(state.client_now(&world.0, client));
        until.is_none_or(|until| state.clients[client].broken.is_none_or(|most| until <= most))
    })
}
