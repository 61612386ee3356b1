/** Checks the files for TLS at the start. */
import { createSecureContext, type SecureContextOptions } from 'node:tls'
import { reasonOf } from '../../errors.ts'

/** PEM, as etcd's own clients take it. */
export type EtcdTls = Readonly<Record<'ca' | 'cert' | 'key', Buffer | undefined>>

type TlsProblem = { readonly member: keyof EtcdTls; readonly what: string }

/** What Node cannot use. Dates are left to etcd: the clock may be wrong while a machine starts. */
export function tlsProblems({ ca, cert, key }: EtcdTls): readonly TlsProblem[] {
  const problems: TlsProblem[] = []
  const check = (member: keyof EtcdTls, options: SecureContextOptions): void => {
    try {
      createSecureContext(options)
    } catch (error) {
      problems.push({ member, what: `cannot be used: ${reasonOf(error)}` })
    }
  }
  // As `ca`, Node would accept a file without a certificate, and then trust no member.
  check('ca', { cert: ca })
  check('cert', { cert })
  check('key', { key })
  if (problems.length === 0) check('key', { cert, key })
  return problems
}
