"""The write rules, one file each; the file name is the registration.

    S~_t = Diag(exp(log_decay_t)) S_{t-1},   u_t = beta_t (v_t - S~_t^T r_t),   S_t = S~_t + k_t u_t^T

Each file holds the rule's equation, its source, its lowering to (k, v, r, beta), and `literal`, a token-by-token loop
written from the paper, which only the tests call.
"""
