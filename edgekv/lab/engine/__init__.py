"""What every measurement needs: modes, contexts, passes, figures."""
