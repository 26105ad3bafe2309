// Made by generate: what src/bindings.rs declares.

macro_rules! structs {
    ($use:ident) => {
        $use! {
            fa_options: size flags socket name daemon connect_ns reconnect_ns spin_ns reply_ns config;
            fa_info: size protocol daemon_version backend device_name device_uuid generation session reconnects max_buffers max_buffer_bytes max_streams max_requests resumed ring_bytes origin pid spawn_reason;
            fa_tensor: buffer offset dtype rank shape strides;
            fa_block_pattern: block_tokens local_blocks vert_stride head_step first_head reserved;
            fa_attention: size flags stream batch q k v out lse scale softcap window_left window_right cu_seqlens_q cu_seqlens_k alibi_slopes sinks timeout_ns gates chunk_tokens prefix_lengths block_rows block_keys block_offsets block_columns mask pattern q_scales k_scales v_scales;
            fa_ticket: value stream client;
            fa_pages_attend: size flags stream max_q max_k reserved q out lse k v table lengths cu_q k_new v_new slots k_scales v_scales scale softcap window_left window_right alibi_slopes sinks timeout_ns gates chunk_tokens prefix_lengths pattern;
            fa_completion: size status queued_ns started_ns finished_ns;
            fa_cache_options: size flags name mode dtype layers kv_heads head_dim head_dim_v page_tokens store max_pages ttl_ns k_scales v_scales state_bytes n_states checkpoint_tokens;
            fa_cache_info: size flags mode dtype layers kv_heads head_dim head_dim_v page_tokens sequences page_bytes max_pages used_pages idle_pages store uid states checkpoint_tokens checkpoint_bytes checkpoint_pages reserved;
            fa_sequence_info: size mode cache length planned first step uid checkpoints checkpoint;
            fa_prefix: size flags tokens n_tokens extra extra_bytes;
            fa_step_item: sequence n_new flags;
            fa_step_options: size n_items items tree tree_start;
            fa_step_attend: size flags stream layer cache q k_new v_new out lse scale softcap window_left window_right alibi_slopes sinks rotary_dim rotary_first rotary_base rotary_scale cos sin positions timeout_ns gates chunk_tokens prefix_lengths pattern;
            fa_step_attend_layers: size n_layers attend q_bytes k_bytes v_bytes out_bytes lse_bytes wait wait_increment signal signal_increment;
            fa_step_commit: size stream keep cu_keep timeout_ns gates;
            fa_sequence_copy: size stream sequence first layer reserved k v timeout_ns gates;
            fa_sequence_pages: size stream sequence first n_tokens layer n_layers k v pages n_pages page_offset timeout_ns gates;
            fa_sequence_state: size stream sequence tokens state reserved data timeout_ns gates;
            fa_gate: slot reserved value;
            fa_gates: size n_waits waits n_signals reserved signals;
            fa_timeline_info: size slots client_slots daemon_slots stride reserved epoch;
        }
    };
}

macro_rules! constants {
    ($use:ident) => {
        $use! {
            FA_VERSION_MAJOR
            FA_VERSION_MINOR
            FA_VERSION_PATCH
            FA_CONNECT_SPAWN
            FA_CONNECT_PRIVATE
            FA_CONNECT_NO_RING
            FA_SPAWN_REASON_BYTES
            FA_BUFFER_DEVICE
            FA_BUFFER_READ_ONLY
            FA_ATTENTION_CAUSAL
            FA_ATTENTION_WINDOW
            FA_PAGES_CAUSAL
            FA_PAGES_WINDOW
            FA_PAGES_DETERMINISTIC
            FA_CACHE_V_IN_K
            FA_CACHE_TOKEN_SCALES
            FA_PREFIX_SHARED
            FA_STEP_CHECKPOINT
            FA_STEP_NO_TREE
            FA_STEP_CAUSAL
            FA_STEP_WINDOW
            FA_STEP_ROTARY_INTERLEAVED
            FA_STEP_DETERMINISTIC
            FA_TIMELINE_SLOTS
            FA_GATES_MAX
            FA_GATE_DAEMON
            FA_CLIENT_CONNECTED
            FA_CLIENT_LOST
            FA_DAEMON_NAMED
            FA_DAEMON_USER
            FA_DAEMON_SYSTEM
            FA_DAEMON_SPAWNED
            FA_F32
            FA_F16
            FA_BF16
            FA_E4M3
            FA_I32
            FA_I64
            FA_STORE_PLAIN
            FA_STORE_E4M3
            FA_STORE_INT8
            FA_MODE_READ_UID
            FA_MODE_READ_ALL
            FA_MODE_APPEND_UID
            FA_MODE_APPEND_ALL
            FA_MODE_FORK_UID
            FA_MODE_FORK_ALL
        }
    };
}
