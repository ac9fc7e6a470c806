"""A cluster in one machine: hosts that share the kernel and little else, joined by shaped links and OpenSSH.

    from ringreduce.lab.lab import Lab

    with Lab(hosts=2, rate="1gbit") as lab:
        before = lab.counters()
        done = lab.mpirun(mpi, 2, [sys.executable, "train.py"])      # on hosts a and b, two ranks each
        print(done.status, done.output, lab.counters() - before)

A host is a network, UTS, IPC, mount and PID namespace with its own hostname, boot id, /dev/shm, /tmp and /run, and the
machine's other files. The lab's folder (lab.folder) is the cluster's shared file system. Everything lives in namespaces
that end with the process that made them, so nothing is left however that process ends. Needs root and a few tools:
requirements.missing() says what is not there.
"""
