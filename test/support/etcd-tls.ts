import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, type TestContext } from 'node:test'
import type { EtcdConfig } from '../../dist/store/etcd/client.js'
import { Cluster, gateway, NO_ETCD } from './etcd.ts'
import { configOf } from './etcd-store.ts'
import { temporaryDirectory } from './service.ts'
import { PATIENCE_MS, until } from './time.ts'

/** Why tests that need these programs are skipped; undefined if all are installed. */
function whyWithout(...programs: readonly string[]): string | undefined {
  const missing = programs.filter((name) => spawnSync(name, ['version']).error)
  if (missing.length === 0) return NO_ETCD
  return NO_ETCD ?? `${missing.join(', ')} missing: LITTLE of the etcd store is tested`
}

/** For tests that need etcdctl (Debian: etcd-client). */
export const NO_ETCDCTL = whyWithout('etcdctl')
/** For tests of TLS. */
export const NO_SECURED_ETCD = whyWithout('openssl')
// Loud, as if etcd itself were missing.
if (NO_ETCD === undefined && NO_SECURED_ETCD !== undefined)
  console.log(`SKIPPED: ${NO_SECURED_ETCD}`)

/** Runs etcdctl and returns what it prints. @throws if it fails */
export function etcdctl(endpoint: string, args: readonly string[], input = ''): string {
  const { status, stdout, stderr } = spawnSync('etcdctl', [`--endpoints=${endpoint}`, ...args], {
    encoding: 'utf8',
    input,
    env: { PATH: process.env['PATH'] ?? '', ETCDCTL_API: '3' },
  })
  assert.equal(status, 0, `${args.join(' ')}: ${stderr}`)
  return stdout
}

/** Generated at once; an RSA key takes a while. */
const EC_KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'] as const

/** An authority `ca.pem` and the certificates that it signed, all in one directory. */
class Authority {
  readonly directory: string

  constructor(directory: string) {
    this.directory = directory
    this.#request('ca', '/CN=ca', '-x509', '-out', 'ca.pem', '-days', '2')
    writeFileSync(this.file('ext'), 'subjectAltName=IP:127.0.0.1')
  }

  file(name: string): string {
    return join(this.directory, name)
  }

  /** Makes `name.pem` and `name.key`. */
  sign(name: string, subject: string, days = 2): void {
    this.#request(name, subject, '-out', `${name}.csr`)
    const signer = ['-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial', '-extfile', 'ext']
    const output = ['-out', `${name}.pem`, '-days', String(days)]
    this.#openssl('x509', '-req', '-in', `${name}.csr`, ...signer, ...output)
  }

  /** Flags of etcd. Clients must have a certificate of this authority. */
  get serverFlags(): readonly string[] {
    const own = ['--cert-file', this.file('server.pem'), '--key-file', this.file('server.key')]
    return [...own, '--client-cert-auth', '--trusted-ca-file', this.file('ca.pem')]
  }

  #request(name: string, subject: string, ...more: readonly string[]): void {
    this.#openssl('req', ...EC_KEY, '-keyout', `${name}.key`, '-subj', subject, ...more)
  }

  #openssl(...args: readonly string[]): void {
    const { status, stderr } = spawnSync('openssl', args, { cwd: this.directory, encoding: 'utf8' })
    assert.equal(status, 0, stderr)
  }
}

const ROOT = { name: 'root', password: 'root' } as const
export const PLANTS = { name: 'plants', password: 'secret' } as const

async function newAuthority(): Promise<Authority> {
  const authority = new Authority(await temporaryDirectory())
  authority.sign('server', '/CN=server')
  authority.sign('client', '/O=plants')
  return authority
}

/** The right to a range of keys, as etcd's auth.proto has it. */
export function permission(permType: string, first: string, end?: string): object {
  const base64 = (text: string): string => Buffer.from(text).toString('base64')
  return { permType, key: base64(first), ...(end === undefined ? {} : { range_end: base64(end) }) }
}

let authority: Promise<Authority> | undefined
let shared: Promise<SecuredCluster> | undefined
let prefixes = 0
after(async () => (await shared)?.close())

/** A member with --client-cert-auth, the users `root` and `plants`, and roles for `plants/`. */
export class SecuredCluster {
  readonly authority: Authority
  readonly #cluster: Cluster

  private constructor(cluster: Cluster, authority: Authority) {
    this.#cluster = cluster
    this.authority = authority
  }

  /** One that all tests of a process share: afterwards it asks for no users. */
  static async shared(t: TestContext): Promise<SecuredCluster> {
    const secured = await (shared ??= SecuredCluster.#start([]))
    t.after(() => secured.ask('auth/disable'))
    return secured
  }

  /** One for this test alone. */
  static async start(t: TestContext, flags: readonly string[]): Promise<SecuredCluster> {
    const secured = await SecuredCluster.#start(flags)
    t.after(() => secured.close())
    return secured
  }

  static async #start(flags: readonly string[]): Promise<SecuredCluster> {
    const signer = await (authority ??= newAuthority())
    const cluster = await Cluster.start(1, {
      scheme: 'https',
      cheap: true,
      flags: [...signer.serverFlags, ...flags],
    })
    const secured = new SecuredCluster(cluster, signer)
    await until('etcd answers', () =>
      secured.ask('kv/range', { key: 'AA==' }).then(
        () => true,
        () => false,
      ),
    )
    const all = ['plants/', 'plants0'] as const
    for (const [call, message] of [
      ['auth/user/add', ROOT],
      ['auth/role/add', { name: 'root' }],
      ['auth/user/grant', { user: 'root', role: 'root' }],
      ['auth/user/add', PLANTS],
      ['auth/role/add', { name: 'rw' }],
      ['auth/role/grant', { name: 'rw', perm: permission('READWRITE', ...all) }],
      ['auth/role/add', { name: 'ro' }],
      ['auth/role/grant', { name: 'ro', perm: permission('READ', ...all) }],
    ] as const)
      await secured.ask(call, message)
    await secured.grant('rw')
    return secured
  }

  get endpoints(): readonly string[] {
    return this.#cluster.endpoints
  }

  close(): Promise<void> {
    return this.#cluster.close()
  }

  /** Each has a prefix of its own. */
  config(client = 'client'): EtcdConfig {
    const read = (name: string): Buffer => readFileSync(this.authority.file(name))
    return {
      ...configOf(this.endpoints, `plants/${prefixes++}/`),
      user: PLANTS,
      tls: { ca: read('ca.pem'), cert: read(`${client}.pem`), key: read(`${client}.key`) },
    }
  }

  /** A call as root, also while etcd asks for no users. @throws if it fails */
  async ask(call: string, message: object = {}): Promise<void> {
    const login = await this.#ask('auth/authenticate', ROOT)
    // Absent if etcd asks for no users.
    const { token } = login.body as { readonly token?: string }
    const { status, body } = await this.#ask(call, message, token)
    assert.equal(status, 200, JSON.stringify(body))
  }

  grant(role: string): Promise<void> {
    return this.ask('auth/user/grant', { user: PLANTS.name, role })
  }

  revoke(role: string): Promise<void> {
    return this.ask('auth/user/revoke', { name: PLANTS.name, role })
  }

  #ask(call: string, message: object, token = ''): ReturnType<typeof gateway> {
    const { tls } = this.config()
    return gateway(this.endpoints.join(), `/v3/${call}`, message, PATIENCE_MS, { tls, token })
  }
}
