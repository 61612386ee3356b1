import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { TestContext } from 'node:test'
import type { EtcdConfig } from '../../dist/store/etcd/store.js'
import { Cluster, NO_ETCD } from './etcd.ts'
import { PATIENT } from './etcd-store.ts'
import { temporaryDirectory } from './service.ts'
import { until } from './time.ts'

const missing = ['etcdctl', 'openssl'].filter((name) => spawnSync(name, ['version']).error)
/** Why tests on TLS and users are skipped; undefined where all is installed. */
export const NO_SECURED_ETCD =
  NO_ETCD ??
  (missing.length === 0 ? undefined : `${missing.join(', ')} missing: LITTLE of etcd is tested`)
// Loud, as where etcd itself is missing.
if (NO_ETCD === undefined && missing.length > 0) console.log(`SKIPPED: ${NO_SECURED_ETCD}`)
/** Made at once, unlike one of RSA. */
const EC_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'] as const

/** An authority `ca.pem`, and certificates that it has signed, all in one directory. */
export class Authority {
  readonly directory: string

  constructor(directory: string) {
    this.directory = directory
    this.#openssl(
      'req',
      '-x509',
      ...EC_KEY,
      '-keyout',
      'ca.key',
      '-out',
      'ca.pem',
      '-subj',
      '/CN=ca',
      '-days',
      '2',
    )
    writeFileSync(this.file('ext'), 'subjectAltName=IP:127.0.0.1')
  }

  file(name: string): string {
    return join(this.directory, name)
  }

  read(name: string): Buffer {
    return readFileSync(this.file(name))
  }

  /** `name.pem` and `name.key`. */
  sign(name: string, subject: string, days = 2): void {
    this.#openssl(
      'req',
      ...EC_KEY,
      '-keyout',
      `${name}.key`,
      '-out',
      `${name}.csr`,
      '-subj',
      subject,
    )
    this.#openssl(
      'x509',
      '-req',
      '-in',
      `${name}.csr`,
      '-CA',
      'ca.pem',
      '-CAkey',
      'ca.key',
      '-CAcreateserial',
      '-out',
      `${name}.pem`,
      '-days',
      String(days),
      '-extfile',
      'ext',
    )
  }

  #openssl(...args: readonly string[]): void {
    const { status, stderr } = spawnSync('openssl', args, { cwd: this.directory, encoding: 'utf8' })
    assert.equal(status, 0, stderr)
  }
}

/** A member with --client-cert-auth, the users `root` and `plants`, and a role for `plants/`. */
export class SecuredCluster {
  readonly cluster: Cluster
  readonly authority: Authority
  readonly #endpoint: string

  private constructor(cluster: Cluster, authority: Authority) {
    this.cluster = cluster
    this.authority = authority
    this.#endpoint = cluster.endpoints.join()
  }

  static async start(t: TestContext, flags: readonly string[] = []): Promise<SecuredCluster> {
    const authority = new Authority(await temporaryDirectory())
    authority.sign('server', '/CN=server')
    authority.sign('client', '/O=plants')
    const secure = [
      '--cert-file',
      authority.file('server.pem'),
      '--key-file',
      authority.file('server.key'),
      '--client-cert-auth',
      '--trusted-ca-file',
      authority.file('ca.pem'),
    ]
    const cluster = await Cluster.start(1, {
      scheme: 'https',
      flags: ['--unsafe-no-fsync', ...secure, ...flags],
    })
    t.after(() => cluster.close())
    const secured = new SecuredCluster(cluster, authority)
    await until('etcd answers', () => secured.#run(['endpoint', 'health']).status === 0)
    for (const command of [
      'user add root:root',
      'user grant-role root root',
      'user add plants:secret',
      'role add rw',
      'role grant-permission rw --prefix=true readwrite plants/',
      'role add ro',
      'role grant-permission ro --prefix=true read plants/',
      'user grant-role plants rw',
    ])
      secured.ctl(command)
    return secured
  }

  config(client = 'client'): EtcdConfig {
    const { authority, cluster } = this
    return {
      endpoints: cluster.endpoints,
      prefix: 'plants/',
      user: { name: 'plants', password: 'secret' },
      tls: {
        ca: authority.read('ca.pem'),
        cert: authority.read(`${client}.pem`),
        key: authority.read(`${client}.key`),
      },
      timing: PATIENT,
    }
  }

  /** etcdctl as root. */
  ctl(command: string, input = ''): void {
    const { status, stderr } = this.#run(['--user', 'root:root', ...command.split(' ')], input)
    assert.equal(status, 0, `${command}: ${stderr}`)
  }

  #run(args: readonly string[], input = ''): { status: number | null; stderr: string } {
    const { authority } = this
    const tls = [
      '--cacert',
      authority.file('ca.pem'),
      '--cert',
      authority.file('client.pem'),
      '--key',
      authority.file('client.key'),
    ]
    return spawnSync('etcdctl', [`--endpoints=${this.#endpoint}`, ...tls, ...args], {
      encoding: 'utf8',
      input,
      env: { PATH: process.env['PATH'] ?? '', ETCDCTL_API: '3' },
    })
  }
}
