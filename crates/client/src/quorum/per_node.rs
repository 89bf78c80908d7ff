//! One value for each node, and the only way to name a node.

use core::ops::{Index, IndexMut};

/// One of the nodes: its place in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub usize);

/// A value for each node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PerNode<T>(Vec<T>);

impl<T> PerNode<T> {
    /// `nodes` values.
    pub fn new(nodes: usize, value: impl FnMut(NodeId) -> T) -> Self {
        Self((0..nodes).map(NodeId).map(value).collect())
    }

    /// Each node and its value.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &T)> {
        self.0.iter().enumerate().map(|(node, value)| (NodeId(node), value))
    }

    /// Each node and its value, to change.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (NodeId, &mut T)> {
        self.0.iter_mut().enumerate().map(|(node, value)| (NodeId(node), value))
    }

    /// The nodes.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<T> {
        (0..self.0.len()).map(NodeId)
    }

    /// How many nodes have a value like that.
    pub fn count(&self, like: impl FnMut(&&T) -> bool) -> usize {
        self.0.iter().filter(like).count()
    }
}

#[expect(clippy::indexing_slicing, reason = "a NodeId comes from the same number of nodes")]
impl<T> Index<NodeId> for PerNode<T> {
    type Output = T;

    fn index(&self, node: NodeId) -> &T {
        &self.0[node.0]
    }
}

#[expect(clippy::indexing_slicing, reason = "a NodeId comes from the same number of nodes")]
impl<T> IndexMut<NodeId> for PerNode<T> {
    fn index_mut(&mut self, node: NodeId) -> &mut T {
        &mut self.0[node.0]
    }
}
