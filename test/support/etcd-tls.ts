import { readFileSync } from 'node:fs'
import { after, type TestContext } from 'node:test'
import type { EtcdConfig } from '../../dist/store/etcd/client.js'
import { Cluster, gateway } from './etcd.ts'
import { AUTHORITY, CERTIFICATE, KEY, pemFile } from './etcd-pem.ts'
import { configOf, hurry } from './etcd-store.ts'

const TLS = {
  ca: Buffer.from(AUTHORITY),
  cert: Buffer.from(CERTIFICATE),
  key: Buffer.from(KEY),
}
const ROOT = { name: 'root', password: 'root' } as const
export const PLANTS = { name: 'plants', password: 'secret' } as const
/** Clients must have a certificate of the authority. */
const FLAGS = [
  ...['--cert-file', pemFile('server'), '--key-file', pemFile('key')],
  ...['--client-cert-auth', '--trusted-ca-file', pemFile('authority')],
]

/** The right to a range of keys, as etcd's auth.proto has it. */
export function permission(permType: string, first: string, end?: string): object {
  const base64 = (text: string): string => Buffer.from(text).toString('base64')
  return { permType, key: base64(first), ...(end === undefined ? {} : { range_end: base64(end) }) }
}

let shared: Promise<SecuredCluster> | undefined
let prefixes = 0
after(async () => (await shared)?.cluster.close())

/** A member over TLS, the users `root` and `plants`, and roles for `plants/`. */
export class SecuredCluster {
  readonly cluster: Cluster

  private constructor(cluster: Cluster) {
    this.cluster = cluster
  }

  /** One that all tests of a process share, in a hurry: afterwards it asks for no users. */
  static async shared(t: TestContext): Promise<SecuredCluster> {
    hurry(t)
    const secured = await (shared ??= SecuredCluster.#start())
    t.after(() => secured.ask('auth/disable'))
    return secured
  }

  static async #start(): Promise<SecuredCluster> {
    const options = { tls: TLS, cheap: true, flags: FLAGS }
    const secured = new SecuredCluster(await Cluster.start(1, options))
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

  /** Each has a prefix for itself. */
  config(client = 'client'): EtcdConfig {
    const tls = { ...TLS, cert: readFileSync(pemFile(client)) }
    return { ...configOf(this.cluster.endpoints, `plants/${prefixes++}/`), user: PLANTS, tls }
  }

  /** A call as root, also while etcd asks for no users. @throws if it fails */
  async ask(call: string, message: object = {}): Promise<void> {
    const endpoint = this.cluster.endpoints.join()
    const login = await gateway(endpoint, '/v3/auth/authenticate', ROOT, { tls: TLS })
    // Absent if etcd asks for no users.
    const { token } = login.body as { readonly token?: string }
    await this.cluster.ask(`/v3/${call}`, message, token)
  }

  grant(role: string): Promise<void> {
    return this.ask('auth/user/grant', { user: PLANTS.name, role })
  }

  revoke(role: string): Promise<void> {
    return this.ask('auth/user/revoke', { name: PLANTS.name, role })
  }
}
